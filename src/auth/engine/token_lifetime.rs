//! Lifetime of a token, and the time at which to renew it.
//!
//! A JWT contains its expiry (`exp`), which is read here without verification: only the server can verify it. etcd's
//! simple tokens contain none: each member drops a token that was not used for `--auth-token-ttl`. Users can
//! configure that time ([`token_lifetime`](crate::ClientBuilder::token_lifetime)). Without it, simple tokens are
//! renewed after a member rejects them, which costs one request an additional round trip, and only after a long pause.
//!
//! The clocks of client and cluster may differ. An expiry that has passed, or is about to pass, is ignored. A token
//! that expires earlier than expected is renewed when a member rejects it.

use std::time::Duration;

/// Tokens with a shorter lifetime are used until they are rejected: they could expire before the renewal is done.
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// Longest time between renewal and expiry, before jitter.
const MAX_MARGIN: Duration = Duration::from_secs(30);
/// Time between renewal and expiry, as a share of the lifetime.
const MARGIN: f64 = 0.25;
/// Largest share of the margin that jitter adds, so that clients started together do not log in together.
const MARGIN_JITTER: f64 = 0.3;
/// Shortest delay between a failed renewal and the next one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Returns how long a token stays valid, if known. `age` is the time since it was requested.
pub(super) fn remaining_lifetime(
    token: &str,
    age: Duration,
    since_epoch: Duration,
    configured: Option<Duration>,
) -> Option<Duration> {
    let remaining = match jwt_expiry(token) {
        Some(expiry) => expiry.checked_sub(since_epoch),
        None => configured.map(|lifetime| lifetime.saturating_sub(age)),
    };
    remaining.filter(|remaining| *remaining >= MIN_LIFETIME)
}

/// Returns the delay before a token with this remaining lifetime is renewed. `random` lies between 0 and 1.
pub(super) fn renewal_delay(remaining: Duration, random: f64) -> Duration {
    let margin = remaining.mul_f64(MARGIN).min(MAX_MARGIN);
    remaining.saturating_sub(margin.mul_f64(1.0 + MARGIN_JITTER * random))
}

/// Returns the delay after a failed renewal: half of the remaining lifetime. `None` if the token expires first.
pub(super) fn retry_delay(remaining: Duration) -> Option<Duration> {
    let delay = (remaining / 2).max(MIN_RETRY_DELAY);
    (delay < remaining).then_some(delay)
}

/// Returns the expiry of a JWT as time since the Unix epoch.
fn jwt_expiry(token: &str) -> Option<Duration> {
    let mut parts = token.split('.');
    let (_header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let claims: serde_json::Value = serde_json::from_slice(&decode_base64url(claims)?).ok()?;
    Duration::try_from_secs_f64(claims.get("exp")?.as_f64()?).ok()
}

/// Decodes unpadded base64url (RFC 4648, section 5), the encoding of JWTs.
fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut buffer, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        buffer = buffer << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            let [.., byte] = (buffer >> bits).to_be_bytes();
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    /// Encodes as unpadded base64url, bit by bit.
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

    fn lifetime_of(token: &str) -> Option<Duration> {
        remaining_lifetime(token, Duration::ZERO, NOW, None)
    }

    #[test]
    fn jwt_contains_its_expiry() {
        let token = jwt(r#"{"username":"ann","revision":4,"exp":1700000300}"#);
        assert_eq!(lifetime_of(&token), Some(Duration::from_secs(300)));
        let half = jwt(r#"{"exp":1700000001.5}"#);
        assert_eq!(lifetime_of(&half), Some(Duration::from_millis(1500)));
        // Made by another implementation: {"alg":"HS256"}, {"exp":1700000060,"username":"ann?>"}
        let known = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE3MDAwMDAwNjAsInVzZXJuYW1lIjoiYW5uPz4ifQ.AA";
        assert_eq!(lifetime_of(known), Some(Duration::from_secs(60)));
    }

    #[test]
    fn token_without_expiry_has_the_configured_lifetime() {
        let configured = Some(Duration::from_secs(300));
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
            assert_eq!(lifetime_of(token), None, "{token}");
            let age = Duration::from_secs(1);
            assert_eq!(
                remaining_lifetime(token, age, NOW, configured),
                Some(Duration::from_secs(299)),
                "{token}"
            );
            assert_eq!(
                remaining_lifetime(token, Duration::from_secs(300), NOW, configured),
                None
            );
        }
    }

    #[test]
    fn expiry_in_the_past_is_ignored() {
        let configured = Some(Duration::from_secs(300));
        for expiry in ["1699999999", "1700000000", "1700000000.9"] {
            let token = jwt(&format!(r#"{{"exp":{expiry}}}"#));
            assert_eq!(
                remaining_lifetime(&token, Duration::ZERO, NOW, configured),
                None,
                "{expiry}"
            );
        }
    }

    #[test]
    fn token_is_renewed_shortly_before_its_expiry() {
        let seconds = Duration::from_secs;
        assert_eq!(renewal_delay(seconds(4), 0.0), seconds(3));
        assert_eq!(renewal_delay(seconds(300), 0.0), seconds(270));
        assert_eq!(renewal_delay(seconds(300), 1.0), seconds(261));
        assert_eq!(renewal_delay(Duration::ZERO, 0.5), Duration::ZERO);
    }

    #[test]
    fn failed_renewal_is_retried_until_expiry() {
        let mut remaining = Duration::from_secs(30);
        let mut attempts = 0;
        while let Some(delay) = retry_delay(remaining) {
            remaining -= delay;
            attempts += 1;
        }
        assert_eq!(attempts, 6);
    }

    proptest! {
        #[test]
        fn encoded_base64url_is_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decode_base64url(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in ".{0,40}\\..{0,40}\\..{0,40}") {
            let _ = lifetime_of(&text);
        }

        #[test]
        fn renewal_comes_before_expiry(lifetime in 0_u64..1_000_000, random in 0.0..1.0) {
            let lifetime = Duration::from_millis(lifetime);
            prop_assert!(renewal_delay(lifetime, random) <= lifetime);
            prop_assert!(renewal_delay(lifetime, random) * 2 >= lifetime);
        }
    }
}
