//! Decides which addresses of a member list may be used. Pure.
//!
//! A member list comes from the cluster, not from the user, and every member may write its own entry. So a list must
//! not lead the client to addresses that the user did not intend, where it would send its token.

use std::net::IpAddr;

use crate::{
    balancer::split_tls_downgrades,
    proto::Member,
    transport::{Endpoint, dial::is_link_local, endpoint::Target},
};

/// Largest number of endpoints that are taken from a member list.
pub(super) const MAX_ADVERTISED: usize = 100;

/// Returns the client addresses of all members that have started and are not learners.
///
/// Leaves out invalid addresses, Unix sockets, link-local addresses, plain addresses if any other endpoint is encrypted
/// (unless `allow_plain` is set), and all after the first [`MAX_ADVERTISED`]. Unix sockets and link-local addresses are
/// used if they are seeds.
pub(super) fn advertised_endpoints(
    members: &[Member],
    seeds: &[Endpoint],
    in_use: &[Endpoint],
    allow_plain: bool,
) -> Vec<Endpoint> {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    let serving = members
        .iter()
        .filter(|member| !member.name.is_empty() && !member.is_learner);
    for url in serving.flat_map(|member| &member.client_ur_ls) {
        let endpoint = match Endpoint::parse(url) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                tracing::warn!(%error, "ignored an advertised endpoint that is not valid");
                continue;
            }
        };
        if endpoints.contains(&endpoint) {
            continue;
        }
        if !seeds.contains(&endpoint) && is_local(&endpoint) {
            tracing::warn!(%endpoint, "ignored an advertised endpoint that is a Unix socket or link-local");
            continue;
        }
        endpoints.push(endpoint);
    }
    if !allow_plain {
        let (kept, plain) = split_tls_downgrades(endpoints, &[seeds, in_use].concat());
        for endpoint in plain {
            tracing::warn!(%endpoint, "ignored an advertised endpoint that is not encrypted");
        }
        endpoints = kept;
    }
    if endpoints.len() > MAX_ADVERTISED {
        let ignored = endpoints.len() - MAX_ADVERTISED;
        tracing::warn!(
            ignored,
            "ignored advertised endpoints: the list is too long"
        );
        endpoints.truncate(MAX_ADVERTISED);
    }
    endpoints
}

/// Returns whether an endpoint is a Unix socket or a link-local address.
fn is_local(endpoint: &Endpoint) -> bool {
    match endpoint.target() {
        Target::Unix(_) => true,
        Target::Tcp { host, .. } => {
            // A zone, as in fe80::1%eth0, is not part of the address.
            let address = host.split('%').next().unwrap_or(host);
            address.parse::<IpAddr>().is_ok_and(is_link_local)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, learner: bool, urls: &[&str]) -> Member {
        Member {
            name: name.to_owned(),
            is_learner: learner,
            client_ur_ls: urls.iter().map(|url| (*url).to_owned()).collect(),
            ..Member::default()
        }
    }

    fn advertised(urls: &[&str], seeds: &[&str]) -> Vec<String> {
        let seeds: Vec<Endpoint> = seeds
            .iter()
            .map(|seed| Endpoint::parse(seed).unwrap())
            .collect();
        names(&advertised_endpoints(
            &[member("m", false, urls)],
            &seeds,
            &[],
            false,
        ))
    }

    fn names(endpoints: &[Endpoint]) -> Vec<String> {
        endpoints.iter().map(|e| e.as_str().to_owned()).collect()
    }

    #[test]
    fn only_valid_urls_of_serving_members_are_used() {
        let members = [
            member("a", false, &["http://a:1", "http://b:1"]),
            member("", false, &["http://unstarted:1"]),
            member("l", true, &["http://learner:1"]),
            member("b", false, &["http://a:1", "nonsense://"]),
        ];
        let endpoints = advertised_endpoints(&members, &[], &[], false);
        assert_eq!(names(&endpoints), ["http://a:1", "http://b:1"]);
    }

    #[test]
    fn local_targets_must_be_given_by_user() {
        let local = [
            "unix:///run/docker.sock",
            "http://169.254.169.254:80",
            "http://[fe80::1]:2379",
            "http://[febf::1]:2379",
            "http://[::ffff:169.254.1.1]:2379",
            "http://10.0.0.1:2379",
        ];
        let seed = ["http://10.0.0.2:2379"];
        assert_eq!(advertised(&local, &seed), ["http://10.0.0.1:2379"]);
        for given in &local[..5] {
            assert_eq!(advertised(&[given], &[given]).len(), 1, "{given}");
        }
    }

    #[test]
    fn plain_address_is_refused_if_seed_is_encrypted() {
        let urls = ["https://b:1", "http://c:1", "http://a:1"];
        assert_eq!(advertised(&urls, &["https://a:1"]), ["https://b:1"]);
        let plain = ["http://c:1"];
        assert!(advertised(&plain, &["https://a:1"]).is_empty());
        assert_eq!(advertised(&plain, &["http://a:1"]), plain);
        let members = [member("m", false, &plain)];
        let encrypted = [Endpoint::parse("https://a:1").unwrap()];
        assert!(advertised_endpoints(&members, &[], &encrypted, false).is_empty());
        let allowed = advertised_endpoints(&members, &encrypted, &[], true);
        assert_eq!(names(&allowed), plain);
    }

    #[test]
    fn number_of_addresses_is_bounded() {
        let urls: Vec<String> = (0..300).map(|n| format!("http://m{n}:1")).collect();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let endpoints = advertised(&urls, &["http://seed:1"]);
        assert_eq!(endpoints, urls[..MAX_ADVERTISED]);
    }
}
