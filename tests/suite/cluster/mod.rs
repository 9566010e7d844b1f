//! Members and the services beside KV.

mod etcdctl_view;
mod members;
mod server_services;
