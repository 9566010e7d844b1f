//! Addresses of members.

use std::{borrow::Cow, fmt, net::Ipv4Addr, path::PathBuf, str::FromStr, sync::Arc};

use http::uri::{Authority, Scheme};

use crate::error::{Error, ErrorKind, Outcome};

const DEFAULT_PORT: u16 = 2379;
const ADVICE: &str = "write it like http://10.0.0.1:2379";

/// The address of one member: `http://host:port`, `https://host:port`, `unix:///path`, `unixs:///path` or a bare
/// `host:port`, which is not encrypted. IPv6 hosts are written in brackets. Default port: 2379.
///
/// Endpoints are compared in their normalized form, so different spellings of one address are equal.
#[derive(Clone)]
pub struct Endpoint(Arc<Parts>);

struct Parts {
    normalized: Arc<str>,
    scheme: Scheme,
    authority: Authority,
    target: Target,
}

/// The socket address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A host name or IP address. Host names are resolved for every connection.
    Tcp { host: String, port: u16 },
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses an endpoint. Fails with [`ErrorKind::InvalidEndpoint`] and the reason.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidEndpoint,
                Outcome::NotSent,
                format!("the endpoint is not valid: it is empty; {ADVICE}"),
            ));
        }
        if hide_credentials(trimmed) != trimmed {
            return Err(invalid(
                text,
                "it contains credentials, which belong in `ClientBuilder::credentials`",
            ));
        }
        let (scheme, rest) = match trimmed.split_once("://") {
            None if has_incomplete_scheme(trimmed) => {
                return Err(invalid(text, "its scheme is not followed by `://`"));
            }
            None => ("http", trimmed),
            Some((scheme, rest)) => (scheme, rest),
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" => Self::tcp(text, Scheme::HTTP, rest),
            "https" => Self::tcp(text, Scheme::HTTPS, rest),
            "unix" => Self::unix(text, Scheme::HTTP, rest),
            "unixs" => Self::unix(text, Scheme::HTTPS, rest),
            other => Err(invalid(
                text,
                &format!("the scheme `{other}` is not http, https, unix or unixs"),
            )),
        }
    }

    fn tcp(text: &str, scheme: Scheme, rest: &str) -> Result<Self, Error> {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.is_empty() || rest.starts_with(['/', ':', '?', '#']) {
            return Err(invalid(text, "the host is missing"));
        }
        if rest.contains(['/', '?', '#']) {
            return Err(invalid(text, "it has a path or a query"));
        }
        let authority: Authority = rest
            .parse()
            .map_err(|error| invalid(text, &format!("`{rest}` is not host:port ({error})")))?;
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(invalid(text, "the host is missing"));
        }
        check_numeric_host(text, &host)?;
        // `Authority` ignores an invalid port, so that "host:99999" would silently get the default port.
        let port = match rest[authority.host().len()..].strip_prefix(':') {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| invalid(text, &format!("`{port}` is not a port")))?,
        };
        let authority: Authority = format!("{host}:{port}")
            .parse()
            .map_err(|error| invalid(text, &format!("{error}")))?;
        let normalized = format!("{scheme}://{authority}");
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self::from_parts(
            normalized,
            scheme,
            authority,
            Target::Tcp { host, port },
        ))
    }

    fn unix(text: &str, scheme: Scheme, path: &str) -> Result<Self, Error> {
        if path.is_empty() {
            return Err(invalid(text, "the path of the socket is missing"));
        }
        let name = if scheme == Scheme::HTTPS {
            "unixs"
        } else {
            "unix"
        };
        let normalized = format!("{name}://{path}");
        let authority = Authority::from_static("localhost");
        Ok(Self::from_parts(
            normalized,
            scheme,
            authority,
            Target::Unix(path.into()),
        ))
    }

    fn from_parts(
        normalized: String,
        scheme: Scheme,
        authority: Authority,
        target: Target,
    ) -> Self {
        Self(Arc::new(Parts {
            normalized: normalized.into(),
            scheme,
            authority,
            target,
        }))
    }

    /// Returns the endpoint in its normalized form.
    pub fn as_str(&self) -> &str {
        &self.0.normalized
    }

    /// Returns the normalized form as a shared string, for errors.
    pub(crate) fn name(&self) -> Arc<str> {
        self.0.normalized.clone()
    }

    pub(crate) fn scheme(&self) -> &Scheme {
        &self.0.scheme
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.0.authority
    }

    pub(crate) fn target(&self) -> &Target {
        &self.0.target
    }

    /// Returns whether connections to this endpoint are encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.scheme == Scheme::HTTPS
    }
}

/// The text of an endpoint before parsing. `Debug` hides credentials in it.
#[derive(Clone)]
pub(crate) struct RawEndpoint(pub(crate) String);

impl AsRef<str> for RawEndpoint {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RawEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", hide_credentials(&self.0))
    }
}

/// Replaces the user name and password before an `@`, so that the text can be printed.
pub(crate) fn hide_credentials(text: &str) -> Cow<'_, str> {
    let has_scheme = |scheme: &str| {
        let start = text.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    // The path of a Unix socket may contain an `@`.
    let Some(at) = text
        .rfind('@')
        .filter(|_| !has_scheme("unix://") && !has_scheme("unixs://"))
    else {
        return Cow::Borrowed(text);
    };
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| has_scheme(scheme));
    Cow::Owned(format!(
        "{}<hidden>{}",
        scheme.unwrap_or_default(),
        &text[at..]
    ))
}

/// Returns whether a text starts with a scheme and a path, as in `http:/a:1`.
fn has_incomplete_scheme(text: &str) -> bool {
    text.split_once(":/").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphabetic())
    })
}

/// Rejects hosts such as `2379` and `10.0.0`. A host name does not end with a number, but resolvers accept such texts
/// as abbreviated IPv4 addresses.
fn check_numeric_host(text: &str, host: &str) -> Result<(), Error> {
    let is_number = |label: &str| label.chars().all(|digit| digit.is_ascii_digit());
    let ends_with_number = host.rsplit('.').next().is_some_and(is_number);
    if !ends_with_number || host.parse::<Ipv4Addr>().is_ok() {
        return Ok(());
    }
    Err(if is_number(host) {
        invalid(text, &format!("the host is missing, `{host}` is a number"))
    } else {
        invalid(text, &format!("`{host}` is not an IPv4 address"))
    })
}

fn invalid(text: &str, problem: &str) -> Error {
    let text = hide_credentials(text.trim());
    Error::new(
        ErrorKind::InvalidEndpoint,
        Outcome::NotSent,
        format!("`{text}` is not a valid endpoint: {problem}; {ADVICE}"),
    )
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        self.0.normalized == other.0.normalized
    }
}

impl Eq for Endpoint {}

impl std::hash::Hash for Endpoint {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.normalized.hash(state);
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.normalized)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.0.normalized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Target {
        Target::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    #[test]
    fn spellings_of_one_address_are_equal() {
        let spellings = [
            "127.0.0.1:2379",
            "http://127.0.0.1:2379",
            "HTTP://127.0.0.1:2379/",
            " 127.0.0.1 ",
        ];
        for text in spellings {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.as_str(), "http://127.0.0.1:2379", "{text}");
            assert_eq!(*endpoint.target(), tcp("127.0.0.1", 2379));
        }
    }

    #[test]
    fn ipv6_brackets_are_removed_only_for_dialing() {
        let endpoint = Endpoint::parse("https://[::1]:4001").unwrap();
        assert_eq!(*endpoint.target(), tcp("::1", 4001));
        assert_eq!(endpoint.authority().as_str(), "[::1]:4001");
        assert!(endpoint.is_tls());
    }

    #[test]
    fn unix_endpoints_keep_their_path() {
        for path in ["/run/etcd.sock", "/run/etcd@home.sock"] {
            let text = format!("unix://{path}");
            let endpoint = Endpoint::parse(&text).unwrap();
            assert_eq!(*endpoint.target(), Target::Unix(path.into()));
            assert_eq!(endpoint.as_str(), text);
        }
    }

    #[test]
    fn credentials_are_rejected_and_hidden() {
        for text in [
            "http://ann:sesame@a:1",
            "HTTPS://ann:sesame@a:1",
            " ann:sesame@a:1 ",
            "ann:se/same@sesame@a:1",
            "http://ann:sesame@a:b",
            "sesame://sesame@a:1",
            "ftp://ann:sesame@a:1",
            "http://ann:s?e#sesame@a:1/path",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            let raw = RawEndpoint(text.to_owned());
            let printed = format!("{error} {error:?} {raw:?}");
            assert!(!printed.contains("sesame"), "{printed}");
            assert!(
                printed.contains("credentials") && printed.contains("@a:"),
                "{printed}"
            );
        }
        assert_eq!(
            hide_credentials("http://ann:sesame@a:1"),
            "http://<hidden>@a:1"
        );
        assert_eq!(hide_credentials("é"), "é");
    }

    #[test]
    fn invalid_endpoints_are_rejected_unsent() {
        for text in [
            "",
            " ",
            "ftp://a:1",
            "http://",
            "http://a:0",
            "http://a:99999",
            "http://a:b",
            "http://a:1/path",
            "http://user:pw@a:1",
            "a b:1",
            "unix://",
            "http://a:1?x=1",
            "http://[::1:2379",
            "2379",
            "10.0.0:2379",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEndpoint, "{text}");
            assert_eq!(error.outcome(), Outcome::NotSent);
        }
    }

    #[test]
    fn error_names_the_problem() {
        for (text, problem) in [
            ("", "the endpoint is not valid: it is empty"),
            ("2379", "the host is missing, `2379` is a number"),
            ("http://2379:2379", "the host is missing"),
            (":2379", "the host is missing"),
            ("http:///a:1", "the host is missing"),
            ("10.0.0:2379", "`10.0.0` is not an IPv4 address"),
            ("http://10.0.0.256", "`10.0.0.256` is not an IPv4 address"),
            ("http:/a:1", "its scheme is not followed by `://`"),
            ("unix:/run/etcd.sock", "its scheme is not followed by `://`"),
            ("a:1/path", "it has a path or a query"),
        ] {
            let error = Endpoint::parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
            assert!(!error.contains("``"), "{error}");
        }
    }

    #[test]
    fn host_names_may_contain_numbers() {
        for text in ["etcd-1:2379", "1.etcd.local", "10.0.0.1", "http:2379"] {
            assert!(Endpoint::parse(text).is_ok(), "{text}");
        }
    }
}
