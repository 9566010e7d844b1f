//! A retry policy read from a gRPC service config, as gRFC A6 defines it.

use super::budget::Throttle;
use super::policy::{Attempt, RetryDecision, RetryPolicy, StandardRetry};
use super::pushback::Pushback;
use super::table::{self, Passing};
use crate::error::{Code, Error, ErrorKind, Outcome, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// Retry rules a method, and a throttle for all, from a gRPC service config.
///
/// Read are `methodConfig[].name`, `methodConfig[].retryPolicy` and `retryThrottling`; other fields are left alone.
/// What gRPC leaves to a client is done as follows:
/// - methods without a `retryPolicy` keep the [standard policy](StandardRetry);
/// - requests that never reached a server, and those refused for their token, are the standard policy's too: gRPC
///   does not count them as retries;
/// - `maxAttempts` holds as written, without gRPC's limit of 5: the config is the program's own, not a stranger's.
///
/// ```
/// let config = r#"{
///   "methodConfig": [{
///     "name": [{ "service": "etcdserverpb.KV", "method": "Range" }],
///     "retryPolicy": {
///       "maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
///       "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
///     }
///   }],
///   "retryThrottling": { "maxTokens": 10, "tokenRatio": 0.1 }
/// }"#;
/// let policy = actix_etcd::retry::ServiceConfig::from_json(config)?;
/// # Ok::<(), actix_etcd::error::Error>(())
/// ```
#[derive(Debug)]
pub struct ServiceConfig {
    /// By path, `/service/method`; of a whole service, `/service/`; of everything, the empty path.
    methods: HashMap<String, Option<MethodRetry>>,
    throttle: Option<Throttle>,
}

#[derive(Clone, Debug, PartialEq)]
struct MethodRetry {
    max_attempts: u32,
    initial_backoff: Duration,
    max_backoff: Duration,
    multiplier: f64,
    /// One bit a status code.
    codes: u32,
}

impl ServiceConfig {
    /// Reads a service config. Fails with [`ErrorKind::InvalidArgument`] if it is not JSON, or breaks a rule of A6; the
    /// message names the field.
    pub fn from_json(json: &str) -> Result<Self> {
        let root: Value = serde_json::from_str(json)
            .map_err(|e| invalid("service config", "is not valid JSON").with_source(e))?;
        let Value::Object(root) = root else {
            return Err(invalid("service config", "must be an object"));
        };
        let mut methods = HashMap::new();
        for config in list(root.get("methodConfig"), "methodConfig")? {
            let retry = match (config.get("retryPolicy"), config.get("hedgingPolicy")) {
                (_, Some(_)) => return Err(invalid("hedgingPolicy", "is not supported")),
                (Some(policy), None) => Some(MethodRetry::read(policy)?),
                (None, None) => None,
            };
            for name in list(config.get("name"), "name")? {
                let path = read_name(name)?;
                if methods.insert(path.clone(), retry.clone()).is_some() {
                    return Err(invalid("name", &format!("has {path:?} twice")));
                }
            }
        }
        let throttle = root.get("retryThrottling").map(read_throttle).transpose()?;
        Ok(Self { methods, throttle })
    }

    /// The most specific entry counts: the method's, else its service's, else the one for everything.
    fn method(&self, rpc: &str) -> Option<&MethodRetry> {
        let service = rpc.rfind('/').map_or("", |end| &rpc[..=end]);
        [rpc, service, ""]
            .iter()
            .find_map(|path| self.methods.get(*path))?
            .as_ref()
    }
}

impl RetryPolicy for ServiceConfig {
    fn decide(&self, attempt: &Attempt) -> RetryDecision {
        let Some(method) = self.method(attempt.rpc) else {
            return StandardRetry.decide(attempt);
        };
        let not_a_retry = attempt.outcome == Outcome::NotSent
            || table::passing(attempt.kind) == Passing::WithToken;
        if not_a_retry {
            return StandardRetry.decide(attempt);
        }
        let retryable = method.codes & bit(code_of(attempt)) != 0;
        let counts = retryable || attempt.pushback == Some(Pushback::Never);
        let throttled = counts && self.throttle.as_ref().is_some_and(|t| !t.failed());
        if !retryable || throttled || attempt.number >= method.max_attempts {
            return RetryDecision::Fail;
        }
        RetryDecision::RetryAfter(method.backoff(attempt.retries_since_pushback, attempt.random))
    }

    fn succeeded(&self, _: &str) {
        if let Some(throttle) = &self.throttle {
            throttle.succeeded();
        }
    }
}

/// The code gRPC itself would have given.
fn code_of(attempt: &Attempt) -> Code {
    if attempt.kind == ErrorKind::TooManyRequests {
        // etcd means ResourceExhausted, but sends it as Unknown.
        return Code::ResourceExhausted;
    }
    let broken = matches!(
        attempt.kind,
        ErrorKind::Unavailable
            | ErrorKind::ConnectionLost
            | ErrorKind::MemberUnresponsive
            | ErrorKind::LeaderLost
    );
    attempt.code.unwrap_or(if broken {
        Code::Unavailable
    } else {
        Code::Unknown
    })
}

fn bit(code: Code) -> u32 {
    1 << (code as u32)
}

impl MethodRetry {
    fn read(policy: &Value) -> Result<Self> {
        let max_attempts = policy
            .get("maxAttempts")
            .and_then(Value::as_u64)
            .filter(|n| *n > 1)
            .ok_or_else(|| invalid("maxAttempts", "must be a whole number above 1"))?;
        let multiplier = policy
            .get("backoffMultiplier")
            .and_then(Value::as_f64)
            .filter(|n| *n > 0.0)
            .ok_or_else(|| invalid("backoffMultiplier", "must be a number above 0"))?;
        let mut codes = 0;
        for code in list(policy.get("retryableStatusCodes"), "retryableStatusCodes")? {
            codes |= read_code(code)?;
        }
        if codes == 0 {
            return Err(invalid("retryableStatusCodes", "must not be empty"));
        }
        Ok(Self {
            max_attempts: u32::try_from(max_attempts).unwrap_or(u32::MAX),
            initial_backoff: read_backoff(policy, "initialBackoff")?,
            max_backoff: read_backoff(policy, "maxBackoff")?,
            multiplier,
            codes,
        })
    }

    fn backoff(&self, retries: u32, random: f64) -> Duration {
        let longest = self.max_backoff.as_secs_f64();
        let exponent = i32::try_from(retries).unwrap_or(i32::MAX);
        let grown = self.initial_backoff.as_secs_f64() * self.multiplier.powi(exponent);
        let jittered = grown.min(longest) * (0.8 + 0.4 * random.clamp(0.0, 1.0));
        Duration::try_from_secs_f64(jittered).unwrap_or(self.max_backoff)
    }
}

fn read_name(name: &Value) -> Result<String> {
    let part = |field| match name.get(field) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(invalid(field, "must be a string")),
    };
    match (part("service")?, part("method")?) {
        ("", "") => Ok(String::new()),
        ("", _) => Err(invalid("name", "has a method without a service")),
        (service, method) => Ok(format!("/{service}/{method}")),
    }
}

fn read_throttle(throttling: &Value) -> Result<Throttle> {
    let max = throttling
        .get("maxTokens")
        .and_then(Value::as_u64)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|n| (1..=1000).contains(n))
        .ok_or_else(|| invalid("maxTokens", "must be a whole number from 1 to 1000"))?;
    let ratio = throttling
        .get("tokenRatio")
        .and_then(Value::as_f64)
        // Decimals beyond the third are ignored. More than all tokens at once means nothing more.
        .and_then(|n| Duration::try_from_secs_f64(n.min(1000.0) + 1e-9).ok())
        .and_then(|n| u32::try_from(n.as_millis()).ok())
        .filter(|thousandths| *thousandths > 0)
        .ok_or_else(|| invalid("tokenRatio", "must be a number of at least 0.001"))?;
    Ok(Throttle::new(max, ratio))
}

fn read_code(code: &Value) -> Result<u32> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let number = match code {
        Value::String(text) => NAMES
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text)),
        _ => code
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n < NAMES.len()),
    };
    number.map(|n| 1 << n).ok_or_else(|| {
        invalid(
            "retryableStatusCodes",
            &format!("has {code}, which is no status code"),
        )
    })
}

fn read_backoff(policy: &Value, field: &'static str) -> Result<Duration> {
    policy
        .get(field)
        .and_then(Value::as_str)
        .and_then(parse_duration)
        .filter(|backoff| !backoff.is_zero())
        .ok_or_else(|| invalid(field, "must be a time above 0 in seconds, as in \"0.1s\""))
}

/// Seconds with up to nine decimals and an `s`, as protobuf writes durations in JSON; A6 itself also writes `.1s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || !(1..=9).contains(&decimals.len()) {
        return None;
    }
    let seconds = match whole {
        "" if number.starts_with('.') => 0,
        _ => whole
            .parse::<u64>()
            .ok()
            .filter(|n| *n <= 315_576_000_000)?,
    };
    Some(Duration::new(
        seconds,
        format!("{decimals:0<9}").parse().ok()?,
    ))
}

fn list<'a>(value: Option<&'a Value>, field: &str) -> Result<&'a [Value]> {
    match value {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(invalid(field, "must be a list")),
    }
}

fn invalid(field: &str, what: &str) -> Error {
    Error::invalid(format!("{field} {what}"))
}

#[cfg(test)]
mod tests;
