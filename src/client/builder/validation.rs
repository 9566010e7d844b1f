//! Checks of options and endpoints.

use std::time::Duration;

use super::ClientBuilder;
use crate::{
    error::{Error, ErrorKind, Outcome},
    maintenance::versions::Version,
    transport::{Endpoint, tls::Tls},
};

/// etcd closes connections that are pinged more often than every 5 s.
const MIN_PING_INTERVAL: Duration = Duration::from_secs(10);

impl ClientBuilder {
    pub(super) fn validate(&self) -> Result<(), Error> {
        if let Some(error) = &self.tls_error {
            return Err(error.clone());
        }
        let ping_interval = self.dial.ping_interval;
        if ping_interval.is_some_and(|interval| interval < MIN_PING_INTERVAL) {
            return Err(Error::invalid(
                "`ping_interval` must be at least 10 s, because etcd closes connections that are \
                 pinged more often than every 5 s; use `None` to send no pings",
            ));
        }
        if self.watch_streams.watches_per_stream == 0 {
            return Err(Error::invalid("`watches_per_stream` must be at least 1"));
        }
        if self.request_options.marker_prefix.is_empty() {
            return Err(Error::invalid("`marker_prefix` must not be empty"));
        }
        if self.max_in_flight == 0 {
            return Err(Error::invalid("`max_in_flight` must be at least 1"));
        }
        let durations = [
            ("auto_sync", self.auto_sync),
            ("token_lifetime", self.token_lifetime),
            (
                "watch_progress_interval",
                self.watch_streams.progress_interval,
            ),
            ("request_timeout", Some(self.request_options.timeout)),
            ("connect_timeout", Some(self.dial.connect_timeout)),
            ("ping_timeout", Some(self.dial.ping_timeout)),
        ];
        let liveness = self.liveness.options();
        let liveness = liveness.map(|(name, time)| (name, Some(time)));
        for (name, duration) in durations.into_iter().chain(liveness) {
            if duration.is_some_and(|duration| duration.is_zero()) {
                return Err(Error::invalid(format!(
                    "`{name}` must be greater than zero"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn required_version(&self) -> Result<Option<Version>, Error> {
        let Some(text) = &self.min_cluster_version else {
            return Ok(None);
        };
        let version = Version::parse(text).ok_or_else(|| {
            Error::invalid(format!(
                "`min_cluster_version` is {text:?}, which is not a version; write it like 3.5 or 3.5.1"
            ))
        })?;
        Ok(Some(version))
    }

    pub(super) fn parsed_endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        parse_endpoints(&self.endpoints, &self.dial.tls)
    }
}

/// Parses endpoints and removes duplicates. Fails if the list is empty, or mixes encrypted and plain endpoints without
/// permission.
pub(crate) fn parse_endpoints(
    texts: &[impl AsRef<str>],
    tls: &Tls,
) -> Result<Vec<Endpoint>, Error> {
    let mut endpoints = Vec::with_capacity(texts.len());
    for text in texts {
        let endpoint = Endpoint::parse(text.as_ref())?;
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    if endpoints.is_empty() {
        return Err(Error::new(
            ErrorKind::NoEndpoints,
            Outcome::NotSent,
            "the list of endpoints is empty; add at least one, such as http://127.0.0.1:2379",
        ));
    }
    let plain = endpoints.iter().find(|endpoint| !endpoint.is_tls());
    let encrypted = endpoints.iter().find(|endpoint| endpoint.is_tls());
    if let (Some(plain), Some(encrypted), false) = (plain, encrypted, tls.allows_plain()) {
        return Err(Error::new(
            ErrorKind::InvalidEndpoint,
            Outcome::NotSent,
            format!(
                "{plain} is not encrypted, but {encrypted} is; use https:// (or unixs://) for all \
                 endpoints, or allow the mixture with `TlsOptions::allow_plain_endpoints`"
            ),
        ));
    }
    Ok(endpoints)
}
