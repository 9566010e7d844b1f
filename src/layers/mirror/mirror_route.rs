//! Which keys a mirror copies, and where to.

use bytes::Bytes;

use crate::{
    client::Client,
    error::{Error, Result},
    kv::{Compare, Get},
    request::{ClientHandle, key_range::after_prefix},
};

/// The prefixes of a mirror, and the key of its checkpoint.
#[derive(Debug, Clone)]
pub(super) struct MirrorRoute {
    pub(super) source_prefix: Bytes,
    pub(super) destination_prefix: Bytes,
    pub(super) checkpoint: Bytes,
}

impl MirrorRoute {
    /// Returns the route in the key space of the clusters: its keys start with the namespaces of the clients.
    pub(super) fn absolute(&self, source: &Client, destination: &Client) -> Self {
        Self {
            source_prefix: absolute_key(source, &self.source_prefix),
            destination_prefix: absolute_key(destination, &self.destination_prefix),
            checkpoint: absolute_key(destination, &self.checkpoint),
        }
    }

    /// Returns the key of the destination for a key of the source.
    pub(super) fn destination_key(&self, source_key: &[u8]) -> Bytes {
        self.with_suffix(source_key.get(self.source_prefix.len()..).unwrap_or(&[]))
    }

    /// Returns the key of the destination with this suffix.
    pub(super) fn with_suffix(&self, suffix: &[u8]) -> Bytes {
        [&self.destination_prefix, suffix].concat().into()
    }

    /// Returns a key of the source that the mirror may read, to learn the revision of the source.
    pub(super) fn probe_key(&self) -> Bytes {
        if self.source_prefix.is_empty() {
            return Bytes::from_static(&[0]);
        }
        self.source_prefix.clone()
    }

    /// Returns whether the key of the destination is the checkpoint, which is never copied nor deleted.
    pub(super) fn is_checkpoint(&self, destination_key: &[u8]) -> bool {
        self.checkpoint == destination_key
    }

    /// Returns the conditions that the destination has no key with its prefix, apart from the checkpoint.
    pub(super) fn destination_is_empty(&self) -> Vec<Compare> {
        let (prefix, checkpoint) = (&self.destination_prefix, &self.checkpoint);
        let is_absent = |key: &[u8]| Compare::version(key.to_vec()).eq(0);
        if !checkpoint.starts_with(prefix) {
            return vec![is_absent(prefix).prefix()];
        }
        let end = after_prefix(prefix);
        let after = is_absent(&[checkpoint, &[0][..]].concat());
        let after = match &end[..] {
            [0] => after.from_key(),
            _ => after.range(end),
        };
        // The first key of the prefix. No key is empty.
        let first = if prefix.is_empty() { &[0] } else { &prefix[..] };
        if first < &checkpoint[..] {
            vec![is_absent(first).range(checkpoint), after]
        } else {
            vec![after]
        }
    }

    /// Fails if source and destination are the same cluster and the mirror would copy its own writes. The route must be
    /// [absolute](Self::absolute).
    pub(super) fn check_same_cluster(&self, cluster: u64) -> Result<()> {
        let (source, destination) = (&self.source_prefix, &self.destination_prefix);
        if source.starts_with(destination) || destination.starts_with(source) {
            return Err(Error::invalid(format!(
                "source and destination are the same cluster (id {cluster:x}), and the prefixes `{}` and `{}` overlap, \
                 so the mirror would copy its own writes; use prefixes of which none starts with the other",
                source.escape_ascii(),
                destination.escape_ascii()
            )));
        }
        if self.checkpoint.starts_with(source) {
            return Err(Error::invalid(format!(
                "source and destination are the same cluster (id {cluster:x}), and the checkpoint `{}` has the \
                 prefix `{}` of the source, so the mirror would copy its own writes; use another key for the \
                 checkpoint",
                self.checkpoint.escape_ascii(),
                source.escape_ascii()
            )));
        }
        Ok(())
    }
}

fn absolute_key(client: &Client, key: &Bytes) -> Bytes {
    match client.view().namespace() {
        Some(namespace) => [&namespace.as_bytes()[..], &key[..]].concat().into(),
        None => key.clone(),
    }
}

/// Returns a read of all keys with the prefix, or of those after the key with this suffix.
pub(super) fn keys_after(client: &Client, prefix: &Bytes, suffix: Option<&[u8]>) -> Get<Client> {
    let Some(suffix) = suffix else {
        return client.get(prefix.clone()).prefix();
    };
    let read = client.get([prefix, suffix, &[0]].concat());
    let end = after_prefix(prefix);
    // etcd encodes "no end" as one zero byte.
    if end[..] == [0] {
        read.from_key()
    } else {
        read.range(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(
        source: &'static str,
        destination: &'static str,
        checkpoint: &'static str,
    ) -> MirrorRoute {
        MirrorRoute {
            source_prefix: source.into(),
            destination_prefix: destination.into(),
            checkpoint: checkpoint.into(),
        }
    }

    #[test]
    fn prefix_of_keys_is_replaced() {
        let route = route("a/", "copy/of/a/", "checkpoint");
        assert_eq!(route.destination_key(b"a/key"), "copy/of/a/key");
        assert_eq!(route.destination_key(b"a/"), "copy/of/a/");
        assert!(route.is_checkpoint(b"checkpoint"));
    }

    #[test]
    fn overlapping_prefixes_of_one_cluster_are_rejected() {
        for (source, destination) in [("a/", "a/b/"), ("a/b/", "a/"), ("", "b/"), ("a/", "a/")] {
            let overlapping = route(source, destination, "checkpoint");
            assert!(
                overlapping.check_same_cluster(1).is_err(),
                "{source} {destination}"
            );
        }
        assert!(
            route("a/", "b/", "checkpoint")
                .check_same_cluster(1)
                .is_ok()
        );
        assert!(
            route("a/", "b/", "a/checkpoint")
                .check_same_cluster(1)
                .is_err()
        );
    }
}
