//! Writes a certificate authority (`ca.crt`) and a server certificate into the folder given as the only argument.
//!
//! `ETCD_TLS=<folder> SSL_CERT_FILE=<folder>/ca.crt` makes all clusters of the testbed use TLS, and all clients
//! trust them.

use std::path::PathBuf;

fn main() {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    testbed::write_shared_certificate(&folder.expect("usage: certificates <folder>"));
}
