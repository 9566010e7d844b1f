//! The checkpoint of a mirror: how far it has copied. It is the JSON value of a key in the destination.

use std::fmt::Write;

use bytes::Bytes;
use serde_json::{Value, json};

use super::mirror_route::MirrorRoute;
use crate::error::{Error, ErrorKind, Outcome, Result};

/// Version of the encoding.
const FORMAT: u64 = 1;

/// How far a mirror has copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MirrorPosition {
    /// The mirror copies all keys as of this revision, or has not chosen one yet (0).
    Base {
        revision: i64,
        /// The keys up to this suffix are copied.
        copied: Option<Bytes>,
    },
    /// The destination has all changes up to this revision.
    Applied {
        revision: i64,
        partial: Option<PartialRevision>,
    },
}

impl MirrorPosition {
    pub(super) const NOTHING_COPIED: Self = Self::Base {
        revision: 0,
        copied: None,
    };

    pub(super) fn revision(&self) -> i64 {
        match self {
            Self::Base { revision, .. } | Self::Applied { revision, .. } => *revision,
        }
    }

    /// Returns the position after revisions that change nothing else, up to this one. The first changes of a later
    /// revision stay applied. Returns `None` if the revision is not newer.
    pub(super) fn advanced_to(&self, revision: i64) -> Option<Self> {
        let partial = match self {
            Self::Applied { partial, .. } => partial.filter(|partial| partial.revision > revision),
            Self::Base { .. } => None,
        };
        (revision > self.revision()).then_some(Self::Applied { revision, partial })
    }
}

/// The first changes of a revision that is too large for one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartialRevision {
    pub(super) revision: i64,
    /// Number of changes of the revision that are applied.
    pub(super) changes: usize,
}

/// The value of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MirrorCheckpoint {
    /// Random number of the mirror that wrote the checkpoint last: each start of a mirror has its own.
    pub(super) writer: u64,
    pub(super) source_cluster: u64,
    // Both prefixes start with the namespaces of the clients.
    pub(super) source_prefix: Bytes,
    pub(super) destination_prefix: Bytes,
    pub(super) position: MirrorPosition,
}

impl MirrorCheckpoint {
    pub(super) fn encode(&self) -> String {
        let mut fields = json!({
            "format": FORMAT,
            "writer": hex(self.writer),
            "source_cluster": hex(self.source_cluster),
            "source_prefix": encode_bytes(&self.source_prefix),
            "destination_prefix": encode_bytes(&self.destination_prefix),
        });
        match &self.position {
            MirrorPosition::Base { revision, copied } => {
                let copied = copied.as_ref().map(encode_bytes);
                fields["base"] = json!({ "revision": revision, "copied": copied });
            }
            MirrorPosition::Applied { revision, partial } => {
                fields["revision"] = json!(revision);
                if let Some(PartialRevision { revision, changes }) = partial {
                    fields["partial"] = json!({ "revision": revision, "changes": changes });
                }
            }
        }
        fields.to_string()
    }

    /// Decodes the value of the key. Fails with [`ErrorKind::CheckpointMismatch`] if it is no checkpoint, or one of a
    /// later version of this crate.
    pub(super) fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let fields: Value = serde_json::from_slice(value).unwrap_or_default();
        match fields["format"].as_u64() {
            Some(FORMAT) => {}
            Some(format) => {
                return Err(mismatch(format!(
                    "the checkpoint `{}` has format {format}, but this version of the mirror reads format {FORMAT} only",
                    key.escape_ascii()
                )));
            }
            None => return Err(no_checkpoint(key)),
        }
        decode_fields(&fields).ok_or_else(|| no_checkpoint(key))
    }

    /// Fails if the checkpoint belongs to a mirror of another cluster or of other prefixes. The route must be absolute.
    pub(super) fn check_belongs_to(&self, route: &MirrorRoute, source_cluster: u64) -> Result<()> {
        let key = route.checkpoint.escape_ascii();
        if self.source_cluster != source_cluster {
            return Err(mismatch(format!(
                "the checkpoint `{key}` belongs to a mirror of the cluster {:x}, but the source is the cluster \
                 {source_cluster:x}",
                self.source_cluster
            )));
        }
        let prefixes = (&self.source_prefix, &self.destination_prefix);
        if prefixes != (&route.source_prefix, &route.destination_prefix) {
            return Err(mismatch(format!(
                "the checkpoint `{key}` belongs to a mirror of the prefix `{}` to `{}`, not of `{}` to `{}`",
                prefixes.0.escape_ascii(),
                prefixes.1.escape_ascii(),
                route.source_prefix.escape_ascii(),
                route.destination_prefix.escape_ascii()
            )));
        }
        Ok(())
    }
}

fn mismatch(reason: String) -> Error {
    Error::new(ErrorKind::CheckpointMismatch, Outcome::NotSent, reason)
}

fn no_checkpoint(key: &[u8]) -> Error {
    let key = key.escape_ascii();
    mismatch(format!(
        "the value of `{key}` is not the checkpoint of a mirror"
    ))
}

fn decode_fields(fields: &Value) -> Option<MirrorCheckpoint> {
    let position = match &fields["base"] {
        Value::Null => MirrorPosition::Applied {
            revision: fields["revision"].as_i64()?,
            partial: match &fields["partial"] {
                Value::Null => None,
                partial => Some(PartialRevision {
                    revision: partial["revision"].as_i64()?,
                    changes: partial["changes"].as_u64()?.try_into().ok()?,
                }),
            },
        },
        base => MirrorPosition::Base {
            revision: base["revision"].as_i64()?,
            copied: match &base["copied"] {
                Value::Null => None,
                copied => Some(decode_bytes(copied)?),
            },
        },
    };
    Some(MirrorCheckpoint {
        writer: decode_hex(&fields["writer"])?,
        source_cluster: decode_hex(&fields["source_cluster"])?,
        source_prefix: decode_bytes(&fields["source_prefix"])?,
        destination_prefix: decode_bytes(&fields["destination_prefix"])?,
        position,
    })
}

/// Ids as `etcdctl` prints them.
fn hex(id: u64) -> String {
    format!("{id:x}")
}

fn decode_hex(field: &Value) -> Option<u64> {
    u64::from_str_radix(field.as_str()?, 16).ok()
}

/// Text as it is, other bytes as `{"hex": "00ff"}`.
fn encode_bytes(bytes: &Bytes) -> Value {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return json!(text);
    }
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string never fails.
        let _ = write!(digits, "{byte:02x}");
    }
    json!({ "hex": digits })
}

fn decode_bytes(field: &Value) -> Option<Bytes> {
    if let Some(text) = field.as_str() {
        return Some(Bytes::copy_from_slice(text.as_bytes()));
    }
    let digits = field["hex"].as_str()?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &[u8] = b"checkpoint";

    fn checkpoint(prefix: &[u8], position: MirrorPosition) -> MirrorCheckpoint {
        MirrorCheckpoint {
            writer: u64::MAX,
            source_cluster: 0xcdf8,
            source_prefix: Bytes::copy_from_slice(prefix),
            destination_prefix: Bytes::from_static(b"copy/"),
            position,
        }
    }

    fn any_position() -> impl Strategy<Value = MirrorPosition> {
        let suffix = proptest::collection::vec(any::<u8>(), 0..8).prop_map(Bytes::from);
        let base = (0..i64::MAX, proptest::option::of(suffix))
            .prop_map(|(revision, copied)| MirrorPosition::Base { revision, copied });
        let partial = (0..i64::MAX, any::<u32>()).prop_map(|(revision, changes)| PartialRevision {
            revision,
            changes: changes as usize,
        });
        let applied = (0..i64::MAX, proptest::option::of(partial))
            .prop_map(|(revision, partial)| MirrorPosition::Applied { revision, partial });
        prop_oneof![base, applied]
    }

    proptest! {
        #[test]
        fn checkpoint_survives_encoding_and_decoding(
            prefix in proptest::collection::vec(any::<u8>(), 0..8),
            position in any_position(),
        ) {
            let checkpoint = checkpoint(&prefix, position);
            let decoded = MirrorCheckpoint::decode(KEY, checkpoint.encode().as_bytes());
            prop_assert_eq!(decoded.unwrap(), checkpoint);
        }

        #[test]
        fn decoding_never_panics(value in ".*") {
            let _ = MirrorCheckpoint::decode(KEY, value.as_bytes());
        }
    }

    #[test]
    fn advanced_position_keeps_later_partial_revision() {
        let partial = |revision| {
            let changes = 3;
            PartialRevision { revision, changes }
        };
        let at = |revision, partial| MirrorPosition::Applied { revision, partial };
        let position = at(5, Some(partial(8)));
        assert_eq!(position.advanced_to(5), None);
        assert_eq!(position.advanced_to(7), Some(at(7, Some(partial(8)))));
        assert_eq!(position.advanced_to(8), Some(at(8, None)));
    }

    #[test]
    fn other_values_are_rejected() {
        for value in [
            "",
            "text",
            "{}",
            r#"{"format":1}"#,
            r#"{"format":2}"#,
            "[1]",
        ] {
            let error = MirrorCheckpoint::decode(KEY, value.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::CheckpointMismatch, "{value}");
        }
    }

    #[test]
    fn checkpoint_of_other_mirror_is_rejected() {
        let checkpoint = checkpoint(b"a/", MirrorPosition::NOTHING_COPIED);
        let route = |source: &'static str| MirrorRoute {
            source_prefix: source.into(),
            destination_prefix: "copy/".into(),
            checkpoint: Bytes::from_static(KEY),
        };
        assert!(checkpoint.check_belongs_to(&route("a/"), 0xcdf8).is_ok());
        let other_prefix = checkpoint.check_belongs_to(&route("b/"), 0xcdf8);
        assert!(
            other_prefix
                .unwrap_err()
                .to_string()
                .contains("of the prefix `a/`")
        );
        let other_cluster = checkpoint.check_belongs_to(&route("a/"), 1).unwrap_err();
        assert_eq!(other_cluster.kind(), ErrorKind::CheckpointMismatch);
        let text = other_cluster.to_string();
        assert!(
            text.contains("of the cluster cdf8") && text.contains("start_over"),
            "{text}"
        );
    }
}
