//! Keeps plain endpoints apart from encrypted ones.

use crate::transport::Endpoint;

/// Splits new endpoints into those that may be used beside the known ones, and plain ones that may not: if any endpoint
/// is encrypted, a plain one would expose passwords and tokens.
pub(crate) fn split_tls_downgrades(
    new: Vec<Endpoint>,
    known: &[Endpoint],
) -> (Vec<Endpoint>, Vec<Endpoint>) {
    let encrypted = new.iter().chain(known).any(Endpoint::is_tls);
    new.into_iter()
        .partition(|endpoint| endpoint.is_tls() || !encrypted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(names: &[&str]) -> Vec<Endpoint> {
        let parsed = names.iter().map(|name| Endpoint::parse(name));
        parsed.map(Result::unwrap).collect()
    }

    #[test]
    fn plain_endpoint_is_refused_beside_encrypted_one() {
        for (known, new, accepted) in [
            (
                vec!["https://a:1"],
                vec!["https://b:1", "http://c:1"],
                vec!["https://b:1"],
            ),
            (vec!["https://a:1"], vec!["http://a:1", "unix:///s"], vec![]),
            (vec!["unixs:///s"], vec!["http://a:1"], vec![]),
            (
                vec!["http://a:1"],
                vec!["https://b:1", "http://c:1"],
                vec!["https://b:1"],
            ),
            (
                vec!["http://a:1"],
                vec!["http://b:1", "unix:///s"],
                vec!["http://b:1", "unix:///s"],
            ),
        ] {
            let (kept, refused) = split_tls_downgrades(endpoints(&new), &endpoints(&known));
            assert_eq!(kept, endpoints(&accepted), "{known:?} {new:?}");
            assert_eq!(refused.len(), new.len() - accepted.len());
        }
    }
}
