//! Members, server-side locks and elections, health.

mod etcdctl_view;
mod members;
mod server_services;
