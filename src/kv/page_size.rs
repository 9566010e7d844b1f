//! Number of keys per page of a streamed range, so that a page has about the same size whatever the size of the values.

/// Keys of the first page. Few, because the size of the values is not known yet.
pub(super) const FIRST_PAGE: i64 = 32;
/// Size of a page in bytes that the number of keys aims at.
const TARGET_BYTES: usize = 1 << 20;
/// A page has at most this many times as many keys as the page before it: later values may be larger.
const MAX_GROWTH: i64 = 8;
/// Largest number of keys, however small their values are.
pub(super) const MAX_KEYS: i64 = 4096;

/// Returns the number of keys of the page after one with `keys` keys of `bytes` bytes in total.
pub(super) fn next_page_size(previous: i64, keys: usize, bytes: usize) -> i64 {
    let average = (bytes / keys.max(1)).max(1);
    let wanted = i64::try_from(TARGET_BYTES / average).unwrap_or(MAX_KEYS);
    let largest = previous.saturating_mul(MAX_GROWTH).min(MAX_KEYS);
    wanted.clamp(1, largest.max(1))
}

/// Returns the number of keys of the page after one that did not arrive in time.
pub(super) fn page_size_after_timeout(previous: i64) -> i64 {
    if previous > FIRST_PAGE {
        FIRST_PAGE
    } else {
        (previous / MAX_GROWTH).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_size_approaches_target_step_by_step() {
        let mut size = FIRST_PAGE;
        let mut sizes = Vec::new();
        for _ in 0..5 {
            let keys = usize::try_from(size).unwrap();
            size = next_page_size(size, keys, keys * 1024);
            sizes.push(size);
        }
        assert_eq!(sizes, [256, 1024, 1024, 1024, 1024]);
    }

    #[test]
    fn large_values_shrink_the_page_to_one_key() {
        assert_eq!(next_page_size(FIRST_PAGE, 32, 32 * (3 << 20)), 1);
    }

    #[test]
    fn timeouts_shrink_the_page_to_one_key() {
        let sizes: Vec<_> = std::iter::successors(Some(MAX_KEYS), |size| {
            (*size > 1).then(|| page_size_after_timeout(*size))
        })
        .collect();
        assert_eq!(sizes, [MAX_KEYS, FIRST_PAGE, 4, 1]);
    }

    #[test]
    fn empty_values_do_not_exceed_the_maximum() {
        assert_eq!(next_page_size(4_000, 4_000, 0), MAX_KEYS);
        assert_eq!(next_page_size(1, 0, 0), MAX_GROWTH);
    }
}
