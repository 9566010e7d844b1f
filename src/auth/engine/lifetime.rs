//! How long a token lasts, where that can be known, and when to get the next one. Pure: times are arguments.
//!
//! A JWT tells its end (`exp`); it is read here, not verified, for the server alone can do that. etcd's own simple tokens
//! tell nothing: each member forgets one that it was not shown for `--auth-token-ttl`, which is for the user to say
//! ([`token_lifetime`](crate::ClientBuilder::token_lifetime)). Without that they are replaced when they are refused,
//! which costs a call one more round trip, and only after a time without any.
//!
//! Clocks may differ: an end that is past already, or as good as, says nothing, and one that comes earlier than expected
//! shows when the token is refused.

use std::time::Duration;

/// A token that lasts no longer is used until it is refused: it could end before the next one is there.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// A token is replaced this much before its end at the most.
const LONGEST_MARGIN: Duration = Duration::from_secs(30);
/// The part of its life that is left when it is replaced.
const MARGIN: f64 = 0.25;
/// Clients that were started together do not log in together: each has up to this much more of a margin.
const SPREAD: f64 = 0.3;
/// An attempt before the end that failed is made again when half of the rest is over, but not sooner than this.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// How much longer a token lasts, where that is known. It was asked for this long ago, and may be as old.
pub(super) fn lifetime(
    token: &str,
    age: Duration,
    since_epoch: Duration,
    told: Option<Duration>,
) -> Option<Duration> {
    let left = match jwt_end(token) {
        Some(end) => end.checked_sub(since_epoch),
        None => told.map(|told| told.saturating_sub(age)),
    };
    left.filter(|left| *left >= SHORTEST_LIFE)
}

/// How long to wait before a token is replaced that lasts this long. `chance` is in 0..1.
pub(super) fn renewal(left: Duration, chance: f64) -> Duration {
    let margin = left.mul_f64(MARGIN).min(LONGEST_MARGIN);
    left.saturating_sub(margin.mul_f64(1.0 + SPREAD * chance))
}

/// How long to wait after an attempt to replace it failed; `None` where its end comes first.
pub(super) fn next_attempt(left: Duration) -> Option<Duration> {
    let pause = (left / 2).max(SHORTEST_PAUSE);
    (pause < left).then_some(pause)
}

/// The end of a JWT, since the epoch.
fn jwt_end(token: &str) -> Option<Duration> {
    let mut parts = token.split('.');
    let (_header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let claims: serde_json::Value = serde_json::from_slice(&base64url(claims)?).ok()?;
    Duration::try_from_secs_f64(claims.get("exp")?.as_f64()?).ok()
}

/// Base64 as JWTs have it: two letters of its own, no padding.
fn base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            let [.., whole] = (held >> bits).to_be_bytes();
            bytes.push(whole);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    /// Unpadded, as RFC 4648 has it, made bit by bit.
    fn encode(bytes: &[u8]) -> String {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let bits: Vec<u8> = bytes
            .iter()
            .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1))
            .collect();
        bits.chunks(6)
            .map(|chunk| {
                let value = (0..6).fold(0, |sum, bit| sum << 1 | chunk.get(bit).unwrap_or(&0));
                char::from(LETTERS[usize::from(value)])
            })
            .collect()
    }

    fn jwt(claims: &str) -> String {
        format!("{}.{}.c2lnbmVk", encode(b"{}"), encode(claims.as_bytes()))
    }

    fn ends_in(token: &str) -> Option<Duration> {
        lifetime(token, Duration::ZERO, NOW, None)
    }

    #[test]
    fn a_jwt_tells_its_end() {
        let token = jwt(r#"{"username":"ann","revision":4,"exp":1700000300}"#);
        assert_eq!(ends_in(&token), Some(Duration::from_secs(300)));
        let half = jwt(r#"{"exp":1700000001.5}"#);
        assert_eq!(ends_in(&half), Some(Duration::from_millis(1500)));
        // One that was made elsewhere: {"alg":"HS256"}, {"exp":1700000060,"username":"ann?>"}
        let known = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE3MDAwMDAwNjAsInVzZXJuYW1lIjoiYW5uPz4ifQ.AA";
        assert_eq!(ends_in(known), Some(Duration::from_secs(60)));
    }

    #[test]
    fn what_tells_no_end_lasts_as_long_as_the_user_says() {
        let told = Some(Duration::from_secs(300));
        for token in [
            "FQldVdPCmZpaTprg.12",
            "",
            "a.b.c",
            "..",
            &jwt("{}"),
            &jwt("[]"),
            &jwt(r#"{"exp":"soon"}"#),
            &jwt(r#"{"exp":-1}"#),
            &jwt(r#"{"exp":1e300}"#),
            &format!("{}.more", jwt(r#"{"exp":1700000300}"#)),
        ] {
            assert_eq!(ends_in(token), None, "{token}");
            let age = Duration::from_secs(1);
            assert_eq!(
                lifetime(token, age, NOW, told),
                Some(Duration::from_secs(299)),
                "{token}"
            );
            assert_eq!(lifetime(token, Duration::from_secs(300), NOW, told), None);
        }
    }

    #[test]
    fn an_end_that_is_past_by_our_clock_says_nothing() {
        let told = Some(Duration::from_secs(300));
        for end in ["1699999999", "1700000000", "1700000000.9"] {
            let token = jwt(&format!(r#"{{"exp":{end}}}"#));
            assert_eq!(lifetime(&token, Duration::ZERO, NOW, told), None, "{end}");
        }
    }

    #[test]
    fn a_token_is_replaced_before_its_end_and_not_long_before() {
        let seconds = Duration::from_secs;
        assert_eq!(renewal(seconds(4), 0.0), seconds(3));
        assert_eq!(renewal(seconds(300), 0.0), seconds(270));
        assert_eq!(renewal(seconds(300), 1.0), seconds(261));
        assert_eq!(renewal(Duration::ZERO, 0.5), Duration::ZERO);
    }

    #[test]
    fn attempts_that_fail_come_closer_together_and_end() {
        let mut left = Duration::from_secs(30);
        let mut attempts = 0;
        while let Some(pause) = next_attempt(left) {
            left -= pause;
            attempts += 1;
        }
        assert_eq!(attempts, 6);
    }

    proptest! {
        #[test]
        fn base64_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(base64url(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,40}\\..{0,40}\\..{0,40}") {
            let _ = ends_in(&text);
        }

        #[test]
        fn the_replacement_always_comes_in_time(life in 0_u64..1_000_000, chance in 0.0..1.0) {
            let life = Duration::from_millis(life);
            prop_assert!(renewal(life, chance) <= life);
            prop_assert!(renewal(life, chance) * 2 >= life);
        }
    }
}
