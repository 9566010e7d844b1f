//! The testbed's own way to talk to etcd: its HTTP/JSON gateway, over a connection of its own for each call, past the
//! proxies. What a test believes of the server must not come through the client it tests.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ports;

/// How long one call may take; etcd itself gives up after 7 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes as etcd's JSON has them.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Bytes back from etcd's JSON; what is absent is empty.
pub fn decode(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap_or_default();
    STANDARD
        .decode(text)
        .unwrap_or_else(|why| panic!("etcd sent {text:?}, which is not base64: {why}"))
}

/// A 64-bit number from etcd's JSON, where it is a string; what is absent is zero.
pub fn number<T: std::str::FromStr + Default>(value: &Value) -> T {
    match value {
        Value::String(text) => text.parse().unwrap_or_default(),
        other => other.to_string().parse().unwrap_or_default(),
    }
}

/// One call: the JSON of the answer, or what etcd says is wrong.
pub(crate) async fn call(
    port: u16,
    path: &str,
    body: &Value,
    token: Option<&str>,
) -> Result<Value, String> {
    let called = async {
        let answer = send(port, "POST", path, &body.to_string(), token).await?;
        let (status, text) = answer.text().await?;
        match status {
            200 => serde_json::from_str(&text)
                .map_err(|why| format!("{path} answered no JSON ({why}): {text}")),
            _ => Err(text.trim().to_owned()),
        }
    };
    timeout(PATIENCE, called)
        .await
        .unwrap_or_else(|_| Err(format!("{path} did not answer within {PATIENCE:?}")))
}

/// A page in plain text, such as `/metrics`.
pub(crate) async fn page(port: u16, path: &str) -> Result<String, String> {
    let called = async {
        let (status, text) = send(port, "GET", path, "", None).await?.text().await?;
        if status == 200 { Ok(text) } else { Err(text) }
    };
    timeout(PATIENCE, called)
        .await
        .unwrap_or_else(|_| Err(format!("{path} did not answer within {PATIENCE:?}")))
}

/// A call that is answered by a stream of JSON values, one a line.
pub(crate) async fn stream(
    port: u16,
    path: &str,
    body: &Value,
    token: Option<&str>,
) -> Result<Answer, String> {
    let answer = send(port, "POST", path, &body.to_string(), token).await?;
    if answer.status == 200 {
        Ok(answer)
    } else {
        Err(answer.text().await?.1)
    }
}

async fn send(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
    token: Option<&str>,
) -> Result<Answer, String> {
    let broken = |why: std::io::Error| format!("{path} on port {port}: {why}");
    let stream = TcpStream::connect(ports::loopback(port))
        .await
        .map_err(broken)?;
    let mut stream = BufReader::new(stream);
    let token = token
        .map(|token| format!("Authorization: {token}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{token}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut answer = Answer {
        stream,
        status: 0,
        chunked: false,
        left: 0,
        line: Vec::new(),
    };
    answer.read_head().await.map_err(broken)?;
    Ok(answer)
}

/// An answer whose body is still being read.
pub(crate) struct Answer {
    stream: BufReader<TcpStream>,
    status: u16,
    chunked: bool,
    left: usize,
    line: Vec<u8>,
}

impl Answer {
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

    /// The next piece of the body; empty at its end.
    async fn piece(&mut self) -> std::io::Result<Vec<u8>> {
        let mut buffer = vec![0; 64 * 1024];
        if self.chunked && self.left == 0 {
            let mut size = String::new();
            self.stream.read_line(&mut size).await?;
            self.left = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
            if self.left == 0 {
                return Ok(Vec::new());
            }
        }
        let wanted = if self.chunked {
            self.left.min(buffer.len())
        } else {
            buffer.len()
        };
        let read = self.stream.read(&mut buffer[..wanted]).await?;
        buffer.truncate(read);
        if self.chunked {
            self.left -= read;
            if self.left == 0 {
                self.stream.read_line(&mut String::new()).await?;
            }
        }
        Ok(buffer)
    }

    async fn text(mut self) -> Result<(u16, String), String> {
        let mut body = Vec::new();
        loop {
            let piece = self.piece().await.map_err(|why| why.to_string())?;
            if piece.is_empty() {
                return Ok((self.status, String::from_utf8_lossy(&body).into_owned()));
            }
            body.extend(piece);
        }
    }

    /// The next value of a streamed answer.
    pub(crate) async fn next(&mut self) -> Result<Value, String> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|why| format!("a stream sent no JSON: {why}"));
            }
            let piece = self.piece().await.map_err(|why| why.to_string())?;
            if piece.is_empty() {
                return Err("the stream ended".to_owned());
            }
            self.line.extend(piece);
        }
    }
}
