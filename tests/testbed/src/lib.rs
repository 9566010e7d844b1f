//! Real etcd clusters behind fault proxies, and a scripted gRPC server.
