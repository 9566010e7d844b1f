//! Where a member is reached: what a user writes, parsed once, never guessed twice.

use std::{borrow::Cow, fmt, path::PathBuf, str::FromStr, sync::Arc};

use http::uri::{Authority, Scheme};

use crate::error::{Error, ErrorKind, Outcome};

const DEFAULT_PORT: u16 = 2379;

/// The address of one member: `http://host:port`, `https://host:port`, `unix:///path`, `unixs:///path`
/// or a bare `host:port` (plain text). IPv6 hosts stand in brackets; the port defaults to 2379.
///
/// Two spellings of one address are equal: they are compared in their normal form.
#[derive(Clone)]
pub struct Endpoint(Arc<Parts>);

struct Parts {
    normal: Arc<str>,
    scheme: Scheme,
    authority: Authority,
    target: Target,
}

/// What a dial goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A name or an address; names are looked up at every dial.
    Tcp { host: String, port: u16 },
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Parses what a user wrote; fails with [`ErrorKind::InvalidEndpoint`] and says what is wrong.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let given = text.trim();
        if given.is_empty() {
            return Err(invalid(text, "it is empty"));
        }
        if shown(given) != given {
            return Err(invalid(
                text,
                "credentials do not belong into an endpoint; give them to the builder",
            ));
        }
        let (scheme, rest) = match given.split_once("://") {
            None => ("http", given),
            Some((scheme, rest)) => (scheme, rest),
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" => Self::tcp(text, Scheme::HTTP, rest),
            "https" => Self::tcp(text, Scheme::HTTPS, rest),
            "unix" => Self::unix(text, Scheme::HTTP, rest),
            "unixs" => Self::unix(text, Scheme::HTTPS, rest),
            other => Err(invalid(
                text,
                &format!("the scheme `{other}` is none of http, https, unix and unixs"),
            )),
        }
    }

    fn tcp(text: &str, scheme: Scheme, rest: &str) -> Result<Self, Error> {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(invalid(text, "an endpoint has no path and no query"));
        }
        let written: Authority = rest
            .parse()
            .map_err(|error| invalid(text, &format!("`{rest}` is not host:port ({error})")))?;
        let host = written.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(invalid(text, "the host is missing"));
        }
        // `Authority` drops a port it cannot read, so that "host:99999" would silently become the default one.
        let port = match rest[written.host().len()..].strip_prefix(':') {
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
        let normal = format!("{scheme}://{authority}");
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self::from_parts(
            normal,
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
        let normal = format!("{name}://{path}");
        let authority = Authority::from_static("localhost");
        Ok(Self::from_parts(
            normal,
            scheme,
            authority,
            Target::Unix(path.into()),
        ))
    }

    fn from_parts(normal: String, scheme: Scheme, authority: Authority, target: Target) -> Self {
        Self(Arc::new(Parts {
            normal: normal.into(),
            scheme,
            authority,
            target,
        }))
    }

    /// The endpoint in its normal form.
    pub fn as_str(&self) -> &str {
        &self.0.normal
    }

    pub(crate) fn name(&self) -> Arc<str> {
        self.0.normal.clone()
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

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.scheme == Scheme::HTTPS
    }
}

/// An endpoint as its user wrote it, which is not shown as such: there may be a password in it.
#[derive(Clone)]
pub(crate) struct Written(pub(crate) String);

impl AsRef<str> for Written {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", shown(&self.0))
    }
}

/// What may be shown of an endpoint that somebody wrote: not the user and the password before an `@`.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    let scheme = |name: &str| {
        let start = text.get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    // The path of a socket may have an `@`.
    let Some(at) = text
        .rfind('@')
        .filter(|_| !scheme("unix://") && !scheme("unixs://"))
    else {
        return Cow::Borrowed(text);
    };
    let named = ["http://", "https://"]
        .into_iter()
        .find(|name| scheme(name));
    Cow::Owned(format!(
        "{}<hidden>{}",
        named.unwrap_or_default(),
        &text[at..]
    ))
}

fn invalid(text: &str, why: &str) -> Error {
    let text = shown(text.trim());
    Error::new(
        ErrorKind::InvalidEndpoint,
        Outcome::NotSent,
        format!("`{text}` is not an endpoint: {why}; write it like http://127.0.0.1:2379"),
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
        self.0.normal == other.0.normal
    }
}

impl Eq for Endpoint {}

impl std::hash::Hash for Endpoint {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.normal.hash(state);
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.normal)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.0.normal)
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
    fn ipv6_hosts_lose_their_brackets_for_the_dial_only() {
        let endpoint = Endpoint::parse("https://[::1]:4001").unwrap();
        assert_eq!(*endpoint.target(), tcp("::1", 4001));
        assert_eq!(endpoint.authority().as_str(), "[::1]:4001");
        assert!(endpoint.is_tls());
    }

    #[test]
    fn unix_sockets_keep_their_path() {
        for path in ["/run/etcd.sock", "/run/etcd@home.sock"] {
            let text = format!("unix://{path}");
            let endpoint = Endpoint::parse(&text).unwrap();
            assert_eq!(*endpoint.target(), Target::Unix(path.into()));
            assert_eq!(endpoint.as_str(), text);
        }
    }

    #[test]
    fn a_password_in_an_endpoint_is_refused_and_not_shown() {
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
            let written = Written(text.to_owned());
            let told = format!("{error} {error:?} {written:?}");
            assert!(!told.contains("sesame"), "{told}");
            assert!(
                told.contains("credentials") && told.contains("@a:"),
                "{told}"
            );
        }
        assert_eq!(shown("http://ann:sesame@a:1"), "http://<hidden>@a:1");
        assert_eq!(shown("é"), "é");
    }

    #[test]
    fn what_does_not_parse_is_refused_with_the_reason() {
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
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidEndpoint, "{text}");
            assert_eq!(error.outcome(), Outcome::NotSent);
        }
    }
}
