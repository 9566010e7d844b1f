//! The start of each key of a node, to find a key without a look at the keys themselves.

use std::{cmp::Ordering, ops::Range};

/// The next four bytes of each of up to `N` sorted keys, behind a prefix that all of them share.
#[derive(Clone)]
pub(super) struct KeyHeads<const N: usize> {
    /// Length of the prefix.
    skip: usize,
    heads: [u32; N],
}

impl<const N: usize> Default for KeyHeads<N> {
    fn default() -> Self {
        Self {
            skip: 0,
            heads: [0; N],
        }
    }
}

impl<const N: usize> KeyHeads<N> {
    /// Returns the heads of sorted keys.
    pub(super) fn of<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut new = Self::default();
        if let (Some(first), Some(last)) = (keys.clone().next(), keys.clone().last()) {
            new.skip = common_prefix(first, last);
        }
        for (head, key) in new.heads.iter_mut().zip(keys) {
            *head = head_of(key, new.skip);
        }
        new
    }

    /// Returns the length of the prefix.
    pub(super) fn skip(&self) -> usize {
        self.skip
    }

    /// Returns the places among the first `len` keys whose head is that of `key`. Keys before them are less and keys
    /// after them are greater, provided that `key` has the prefix as well.
    pub(super) fn candidates(&self, key: &[u8], len: usize) -> Range<usize> {
        let head = head_of(key, self.skip);
        let heads = &self.heads[..len];
        // Counted, not searched: the reads do not wait for each other.
        let start = heads.iter().filter(|other| **other < head).count();
        let same = heads[start..].iter().take_while(|other| **other == head);
        start..start + same.count()
    }

    /// Adds the head of a key that has the prefix, at its place among `len` keys.
    pub(super) fn insert(&mut self, index: usize, len: usize, key: &[u8]) {
        self.heads[index..=len].rotate_right(1);
        self.heads[index] = head_of(key, self.skip);
    }

    /// Removes a head from `len` ones.
    pub(super) fn remove(&mut self, index: usize, len: usize) {
        self.heads[index..len].rotate_left(1);
    }
}

/// Returns the place of a key among sorted keys, or where it has to be inserted. `heads` are those of the keys.
pub(super) fn search<'a, const N: usize>(
    heads: &KeyHeads<N>,
    key: &[u8],
    len: usize,
    key_at: impl Fn(usize) -> &'a [u8],
) -> Result<usize, usize> {
    if len == 0 {
        return Err(0);
    }
    let prefix = &key_at(0)[..heads.skip()];
    match compare_with_prefix(key, prefix) {
        Ordering::Less => return Err(0),
        Ordering::Greater => return Err(len),
        Ordering::Equal => {}
    }
    let candidates = heads.candidates(key, len);
    let (mut start, mut end) = (candidates.start, candidates.end);
    while start < end {
        let middle = usize::midpoint(start, end);
        match key_at(middle).cmp(key) {
            Ordering::Less => start = middle + 1,
            Ordering::Greater => end = middle,
            Ordering::Equal => return Ok(middle),
        }
    }
    Err(start)
}

/// Returns the order of a key and all keys with a prefix; equal if the key has the prefix as well.
pub(super) fn compare_with_prefix(key: &[u8], prefix: &[u8]) -> Ordering {
    if key.starts_with(prefix) {
        Ordering::Equal
    } else {
        key.cmp(prefix)
    }
}

pub(super) fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Returns four bytes of a key, in an order that agrees with that of keys. Bytes after its end count as zero.
fn head_of(key: &[u8], skip: usize) -> u32 {
    let rest = key.get(skip..).unwrap_or_default();
    if let Some(head) = rest.first_chunk() {
        return u32::from_be_bytes(*head);
    }
    let mut head = [0; 4];
    head[..rest.len()].copy_from_slice(rest);
    u32::from_be_bytes(head)
}
