//! A retry policy from a gRPC service config, as gRFC A6 defines it.

use std::{collections::HashMap, time::Duration};

use serde_json::Value;

use super::{
    FailedAttempt, RetryDecision, RetryPolicy, StandardRetry, budget::Throttle, pushback::Pushback,
};
use crate::{
    error::{Code, Error, ErrorKind, Outcome, Result},
    runtime::backoff::Backoff,
};

/// Retry rules per method, and a throttle for all methods, from a gRPC service config.
///
/// Uses `methodConfig[].name`, `methodConfig[].retryPolicy` and `retryThrottling`. A `hedgingPolicy` is rejected, other
/// fields are ignored. Where gRPC leaves the choice to the client:
/// - methods without a `retryPolicy` use the [standard policy](StandardRetry);
/// - requests that did not reach a server, and requests rejected for their token, use the standard policy, too: gRPC
///   does not count them as retries;
/// - `maxAttempts` has no upper limit (gRPC limits it to 5), because the config comes from the program itself;
/// - [hedges](RetryPolicy) of a method with a `retryPolicy` count as attempts: `maxAttempts` limits failed attempts and
///   copies in flight together. Like gRPC's hedges, they stop while `retryThrottling` stops retries.
///   [`ClientBuilder::hedging`](crate::client::ClientBuilder::hedging) turns them off, so that such a method behaves as
///   gRPC defines it.
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
    /// Rules by path: `/service/method`, `/service/` for a whole service, or the empty path for all methods.
    methods: HashMap<String, Option<MethodRetry>>,
    throttle: Option<Throttle>,
}

/// Jitter that gRPC prescribes.
const JITTER: f64 = 0.2;

#[derive(Clone, Debug, PartialEq)]
struct MethodRetry {
    max_attempts: u32,
    backoff: Backoff,
    /// One bit per retryable status code.
    codes: u32,
}

impl ServiceConfig {
    /// Parses a service config. Fails with [`ErrorKind::InvalidArgument`] if it is not JSON or violates gRFC A6; the
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
                    return Err(invalid("name", &format!("contains {path:?} twice")));
                }
            }
        }
        let throttle = root.get("retryThrottling").map(read_throttle).transpose()?;
        Ok(Self { methods, throttle })
    }

    /// Returns the most specific rule: that of the method, of its service, or of all methods.
    fn method(&self, rpc: &str) -> Option<&MethodRetry> {
        let service = rpc.rfind('/').map_or("", |end| &rpc[..=end]);
        [rpc, service, ""]
            .iter()
            .find_map(|path| self.methods.get(*path))?
            .as_ref()
    }
}

impl RetryPolicy for ServiceConfig {
    fn decide(&self, attempt: &FailedAttempt) -> RetryDecision {
        let Some(method) = self.method(attempt.rpc) else {
            return StandardRetry.decide(attempt);
        };
        let uncounted =
            attempt.outcome == Outcome::NotSent || attempt.standard == RetryDecision::RenewToken;
        if uncounted {
            return StandardRetry.decide(attempt);
        }
        let retryable = method.codes & bit(code_of(attempt)) != 0;
        let counts = retryable || attempt.pushback == Some(Pushback::Never);
        let throttled = counts && self.throttle.as_ref().is_some_and(|t| !t.failed());
        if !retryable || throttled || attempt.number >= method.max_attempts {
            return RetryDecision::Fail;
        }
        let delay = method
            .backoff
            .delay(attempt.retries_since_pushback, attempt.random);
        RetryDecision::After(delay)
    }

    fn allows_hedge(&self, rpc: &str, attempts: u32) -> bool {
        let Some(method) = self.method(rpc) else {
            return true;
        };
        let throttled = self.throttle.as_ref().is_some_and(Throttle::is_active);
        !throttled && attempts < method.max_attempts
    }

    fn succeeded(&self, _: &str) {
        if let Some(throttle) = &self.throttle {
            throttle.succeeded();
        }
    }
}

/// Returns the code that a gRPC client would report.
fn code_of(attempt: &FailedAttempt) -> Code {
    if attempt.kind == ErrorKind::TooManyRequests {
        // etcd sends it with the code Unknown.
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
            backoff: Backoff::new(
                read_backoff(policy, "initialBackoff")?,
                read_backoff(policy, "maxBackoff")?,
            )
            .factor(multiplier)
            .jitter(JITTER),
            codes,
        })
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
        ("", _) => Err(invalid("name", "contains a method without a service")),
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
        // gRPC ignores decimals beyond the third. A ratio above the maximum number of tokens has no further effect.
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
            &format!("contains {code}, which is not a status code"),
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

/// Parses seconds with up to nine decimals and an `s`, as protobuf writes durations in JSON; gRFC A6 also writes `.1s`.
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
