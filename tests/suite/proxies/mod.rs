//! Clients behind TCP balancers, etcd's gRPC proxy, L7 proxies and host names with several addresses.

mod grpc_proxy;
mod grpc_proxy_faults;
mod grpc_proxy_leases;
mod grpc_proxy_watches;
mod host_names;
mod l7_failures;
mod l7_limits;
mod tcp_balancer;
