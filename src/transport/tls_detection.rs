//! Detects ports that expect TLS.
//!
//! A port that expects TLS closes a plain connection, often without a message, as etcd does. A proxy without a backend
//! does the same, so only the response to a TLS greeting is proof.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::dial::{DialAddress, connect};

/// Longest time to connect and to wait for the response to the greeting.
const DETECTION_TIMEOUT: Duration = Duration::from_millis(500);
/// Start of a `ClientHello`. Record: handshake, TLS 1.0, length. Message: `client_hello`, length. Version: TLS 1.2.
const HELLO_START: [u8; 11] = [22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
/// Not random: the handshake is never finished.
const HELLO_RANDOM: [u8; 32] = [0; 32];
/// No session id, the cipher suite `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`, no compression, no extensions.
const HELLO_END: [u8; 7] = [0, 0, 2, 0xc0, 0x2f, 1, 0];

fn client_hello() -> Vec<u8> {
    [&HELLO_START[..], &HELLO_RANDOM, &HELLO_END].concat()
}

/// Returns whether the server at an address responds to a TLS greeting.
pub(crate) async fn expects_tls(address: &DialAddress) -> bool {
    let response = async {
        let mut socket = connect(address).await?;
        socket.write_all(&client_hello()).await?;
        let mut start = [0; 3];
        socket.read_exact(&mut start).await?;
        io::Result::Ok(start)
    };
    let response = timeout(DETECTION_TIMEOUT, response).await;
    matches!(response, Ok(Ok(start)) if is_tls_record(start))
}

/// Returns whether these bytes start an alert or a handshake message of TLS.
fn is_tls_record(start: [u8; 3]) -> bool {
    matches!(start, [21 | 22, 3, 0..=4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_has_consistent_lengths() {
        let hello = client_hello();
        assert_eq!(usize::from(hello[4]), hello.len() - 5);
        assert_eq!(usize::from(hello[8]), hello.len() - 9);
    }

    #[test]
    fn only_tls_records_are_recognised() {
        assert!(is_tls_record([21, 3, 1]) && is_tls_record([22, 3, 3]));
        assert!(!is_tls_record([0, 0, 6]), "HTTP/2");
        assert!(!is_tls_record(*b"HTT"));
    }
}
