//! Verifies a snapshot: a database of whole pages, followed by its SHA-256 checksum.

use sha2::{Digest, Sha256};

const PAGE: u64 = 512;

/// Computes the checksum of a snapshot while it is received.
#[derive(Default)]
pub(super) struct ChecksumVerifier {
    hash: Sha256,
    /// The last received bytes: the checksum, if no more bytes follow.
    tail: Vec<u8>,
    length: u64,
}

impl ChecksumVerifier {
    /// Length of the checksum.
    pub(super) const LENGTH: usize = 32;

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let data = self.tail.len().saturating_sub(Self::LENGTH);
        self.hash.update(&self.tail[..data]);
        self.tail.drain(..data);
    }

    /// Verifies the snapshot after its last byte.
    pub(super) fn finish(&mut self) -> Result<(), &'static str> {
        if self.length % PAGE != Self::LENGTH as u64 {
            return Err("its length is not that of whole pages and a checksum");
        }
        let found = std::mem::take(&mut self.hash).finalize();
        if found[..] != self.tail[..] {
            return Err("its checksum is wrong");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(pages: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..=250).cycle().take(pages * 512).collect();
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        bytes
    }

    fn check(bytes: &[u8], cut: usize) -> Result<(), &'static str> {
        let mut check = ChecksumVerifier::default();
        for part in bytes.chunks(cut) {
            check.update(part);
        }
        check.finish()
    }

    proptest! {
        #[test]
        fn complete_snapshot_passes_in_any_chunks(pages in 0_usize..4, cut in 1_usize..900) {
            prop_assert_eq!(check(&snapshot(pages), cut), Ok(()));
        }

        #[test]
        fn changed_or_missing_byte_is_detected(at in 0_usize..1056, cut in 1_usize..900) {
            let mut changed = snapshot(2);
            changed[at] ^= 1;
            prop_assert!(check(&changed, cut).is_err());
            prop_assert!(check(&snapshot(2)[..at], cut).is_err());
        }
    }
}
