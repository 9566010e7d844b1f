//! Client of etcd's HTTP/JSON gateway: one connection per request, bypassing the proxies. Tests verify the server's
//! state through it, independently of the client under test.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ports;

/// Timeout of one request; longer than etcd's own timeout of 7 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Encodes bytes for etcd's JSON, as base64.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Decodes bytes from etcd's JSON; empty if absent.
pub fn decode(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap_or_default();
    STANDARD
        .decode(text)
        .unwrap_or_else(|error| panic!("etcd sent invalid base64 {text:?}: {error}"))
}

/// Parses a 64-bit number from etcd's JSON, which encodes it as a string; zero if absent.
pub fn number<T: std::str::FromStr + Default>(value: &Value) -> T {
    match value {
        Value::String(text) => text.parse().unwrap_or_default(),
        other => other.to_string().parse().unwrap_or_default(),
    }
}

/// Sends one request. Returns the JSON of the response, or etcd's error text.
pub(crate) async fn call(
    port: u16,
    path: &str,
    body: &Value,
    token: Option<&str>,
) -> Result<Value, String> {
    let exchange = async {
        let response = send(port, "POST", path, &body.to_string(), token).await?;
        let (status, text) = response.read_text().await?;
        match status {
            200 => serde_json::from_str(&text)
                .map_err(|error| format!("{path} returned invalid JSON ({error}): {text}")),
            _ => Err(text.trim().to_owned()),
        }
    };
    timeout(REQUEST_TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| Err(format!("{path}: no response within {REQUEST_TIMEOUT:?}")))
}

/// Fetches a plain-text page, such as `/metrics`.
pub(crate) async fn page(port: u16, path: &str) -> Result<String, String> {
    let exchange = async {
        let (status, text) = send(port, "GET", path, "", None).await?.read_text().await?;
        if status == 200 { Ok(text) } else { Err(text) }
    };
    timeout(REQUEST_TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| Err(format!("{path}: no response within {REQUEST_TIMEOUT:?}")))
}

/// Sends a request whose response is a stream of JSON values, one per line.
pub(crate) async fn stream(
    port: u16,
    path: &str,
    body: &Value,
    token: Option<&str>,
) -> Result<Response, String> {
    let response = send(port, "POST", path, &body.to_string(), token).await?;
    if response.status == 200 {
        Ok(response)
    } else {
        Err(response.read_text().await?.1)
    }
}

async fn send(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
    token: Option<&str>,
) -> Result<Response, String> {
    let io_error = |error: std::io::Error| format!("{path} on port {port}: {error}");
    let stream = TcpStream::connect(ports::loopback(port))
        .await
        .map_err(io_error)?;
    let mut stream = BufReader::new(stream);
    let token = token
        .map(|token| format!("Authorization: {token}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{token}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(io_error)?;
    let mut response = Response {
        stream,
        status: 0,
        chunked: false,
        chunk_remaining: 0,
        buffered: Vec::new(),
    };
    response.read_head().await.map_err(io_error)?;
    Ok(response)
}

/// A response whose body is read piece by piece.
pub(crate) struct Response {
    stream: BufReader<TcpStream>,
    status: u16,
    chunked: bool,
    chunk_remaining: usize,
    /// Bytes read after the last complete line.
    buffered: Vec<u8>,
}

impl Response {
    async fn read_head(&mut self) -> std::io::Result<()> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        self.status = line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or_default();
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await? == 0 || line.trim().is_empty() {
                return Ok(());
            }
            if line
                .trim()
                .eq_ignore_ascii_case("transfer-encoding: chunked")
            {
                self.chunked = true;
            }
        }
    }

    /// Reads the next piece of the body; empty at the end.
    async fn read_piece(&mut self) -> std::io::Result<Vec<u8>> {
        let mut buffer = vec![0; 64 * 1024];
        if self.chunked && self.chunk_remaining == 0 {
            let mut size = String::new();
            self.stream.read_line(&mut size).await?;
            self.chunk_remaining = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
            if self.chunk_remaining == 0 {
                return Ok(Vec::new());
            }
        }
        let limit = if self.chunked {
            self.chunk_remaining.min(buffer.len())
        } else {
            buffer.len()
        };
        let read = self.stream.read(&mut buffer[..limit]).await?;
        buffer.truncate(read);
        if self.chunked {
            self.chunk_remaining -= read;
            if self.chunk_remaining == 0 {
                self.stream.read_line(&mut String::new()).await?;
            }
        }
        Ok(buffer)
    }

    async fn read_text(mut self) -> Result<(u16, String), String> {
        let mut body = Vec::new();
        loop {
            let piece = self.read_piece().await.map_err(|error| error.to_string())?;
            if piece.is_empty() {
                return Ok((self.status, String::from_utf8_lossy(&body).into_owned()));
            }
            body.extend(piece);
        }
    }

    /// Reads the next value of a streamed response.
    pub(crate) async fn next(&mut self) -> Result<Value, String> {
        loop {
            if let Some(end) = self.buffered.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffered.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|error| format!("invalid JSON in the stream: {error}"));
            }
            let piece = self.read_piece().await.map_err(|error| error.to_string())?;
            if piece.is_empty() {
                return Err("the stream ended".to_owned());
            }
            self.buffered.extend(piece);
        }
    }
}
