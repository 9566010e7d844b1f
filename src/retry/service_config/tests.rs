use super::*;
use crate::{proto::rpc::RpcClass, retry::policy::tests::attempt};

fn config(name: &str, throttling: &str) -> ServiceConfig {
    let json = format!(
        r#"{{ "loadBalancingConfig": [{{ "round_robin": {{}} }}],
             "methodConfig": [{{ "name": [{name}], "timeout": "3s", "retryPolicy": {{
               "maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s",
               "backoffMultiplier": 3, "retryableStatusCodes": ["UNAVAILABLE", "resource_exhausted", 10] }} }}]
             {throttling} }}"#
    );
    ServiceConfig::from_json(&json).expect("a valid config")
}

fn range() -> ServiceConfig {
    config(r#"{ "service": "etcdserverpb.KV", "method": "Range" }"#, "")
}

fn failed_with(code: Code, number: u32) -> FailedAttempt {
    let mut attempt = attempt(RpcClass::Read, ErrorKind::Other, Outcome::Unknown);
    attempt.code = Some(code);
    attempt.number = number;
    attempt.retries_since_pushback = number - 1;
    attempt
}

fn after(ms: u64) -> RetryDecision {
    RetryDecision::After(Duration::from_millis(ms))
}

#[test]
fn listed_codes_are_retried_with_backoff() {
    let policy = range();
    for (number, decision) in [
        (1, after(100)),
        (2, after(300)),
        (3, after(900)),
        (4, RetryDecision::Fail),
    ] {
        assert_eq!(
            policy.decide(&failed_with(Code::Unavailable, number)),
            decision
        );
    }
    assert_eq!(
        policy.decide(&failed_with(Code::ResourceExhausted, 1)),
        after(100)
    );
    assert_eq!(policy.decide(&failed_with(Code::Aborted, 1)), after(100));
    assert_eq!(
        policy.decide(&failed_with(Code::Internal, 1)),
        RetryDecision::Fail
    );
}

#[test]
fn backoff_is_capped_and_jittered() {
    let policy = range();
    let method = policy
        .method("/etcdserverpb.KV/Range")
        .expect("named in the config");
    assert_eq!(method.backoff.delay(0, 0.0), Duration::from_millis(80));
    assert_eq!(method.backoff.delay(0, 1.0), Duration::from_millis(120));
    assert_eq!(method.backoff.delay(50, 0.5), Duration::from_secs(1));
    assert_eq!(
        method.backoff.delay(u32::MAX, 1.0),
        Duration::from_millis(1200)
    );
}

#[test]
fn lost_connection_counts_as_unavailable() {
    let lost = attempt(RpcClass::Read, ErrorKind::ConnectionLost, Outcome::Unknown);
    assert_eq!(range().decide(&lost), after(100));
}

#[test]
fn too_many_requests_counts_as_resource_exhausted() {
    let mut busy = attempt(
        RpcClass::Mutation,
        ErrorKind::TooManyRequests,
        Outcome::Rejected,
    );
    busy.code = Some(Code::Unknown);
    assert_eq!(range().decide(&busy), after(100));
}

#[test]
fn unsent_and_unauthenticated_requests_are_not_counted() {
    for (kind, outcome, decision) in [
        (
            ErrorKind::ConnectionLost,
            Outcome::NotSent,
            RetryDecision::NextMember,
        ),
        (
            ErrorKind::InvalidAuthToken,
            Outcome::Rejected,
            RetryDecision::RenewToken,
        ),
    ] {
        let mut failed = attempt(RpcClass::Mutation, kind, outcome);
        failed.number = 100;
        assert_eq!(range().decide(&failed), decision, "{kind:?}");
    }
}

#[test]
fn unnamed_methods_use_the_standard_policy() {
    let mut lost = attempt(RpcClass::Read, ErrorKind::ConnectionLost, Outcome::Unknown);
    lost.rpc = "/etcdserverpb.KV/Txn";
    assert_eq!(range().decide(&lost), RetryDecision::NextMember);
}

#[test]
fn most_specific_name_wins() {
    let json = r#"{ "methodConfig": [
        { "name": [{ "service": "s", "method": "m" }] },
        { "name": [{ "service": "s" }], "retryPolicy": { "maxAttempts": 2, "initialBackoff": "1s", "maxBackoff": "1s",
          "backoffMultiplier": 1, "retryableStatusCodes": [14] } },
        { "name": [{}], "retryPolicy": { "maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "1s",
          "backoffMultiplier": 1, "retryableStatusCodes": [14] } } ] }"#;
    let policy = ServiceConfig::from_json(json).expect("a valid config");
    let attempts = |rpc| policy.method(rpc).map(|method| method.max_attempts);
    assert_eq!(attempts("/s/m"), None, "named without a policy");
    assert_eq!(attempts("/s/other"), Some(2));
    assert_eq!(attempts("/t/m"), Some(3));
}

#[test]
fn throttle_fails_calls_until_successes() {
    let policy = config(
        "{}",
        r#", "retryThrottling": { "maxTokens": 4, "tokenRatio": 0.5 }"#,
    );
    let failing = failed_with(Code::Unavailable, 1);
    assert_eq!(policy.decide(&failing), after(100));
    assert_eq!(policy.decide(&failing), RetryDecision::Fail);
    assert_eq!(
        policy.decide(&failed_with(Code::InvalidArgument, 1)),
        RetryDecision::Fail,
        "takes no token"
    );
    (0..4).for_each(|_| policy.succeeded("/s/m"));
    assert_eq!(policy.decide(&failing), after(100));
}

#[test]
fn durations_are_parsed_like_protobuf() {
    let ns = Duration::from_nanos;
    for (text, want) in [
        ("1s", ns(1_000_000_000)),
        ("0.1s", ns(100_000_000)),
        (".1s", ns(100_000_000)),
        ("1.000000001s", ns(1_000_000_001)),
        ("0.000340012s", ns(340_012)),
    ] {
        assert_eq!(parse_duration(text), Some(want), "{text}");
    }
    for text in [
        "",
        "s",
        "1",
        "1m",
        "-1s",
        "+1s",
        "1.s",
        ".s",
        "1.0000000001s",
        "1e3s",
        "315576000001s",
        "1,5s",
        " 1s",
    ] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

#[test]
fn invalid_config_error_names_the_field() {
    let method = |field: &str, value: &str| {
        let mut fields = vec![
            ("maxAttempts", "4"),
            ("initialBackoff", "\"0.1s\""),
            ("maxBackoff", "\"1s\""),
            ("backoffMultiplier", "2"),
            ("retryableStatusCodes", "[14]"),
        ];
        fields.retain(|(name, _)| *name != field);
        let mut text: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("\"{name}\": {value}"))
            .collect();
        if !value.is_empty() {
            text.push(format!("\"{field}\": {value}"));
        }
        format!(
            r#"{{ "methodConfig": [{{ "name": [{{}}], "retryPolicy": {{ {} }} }}] }}"#,
            text.join(", ")
        )
    };
    for (field, values) in [
        ("maxAttempts", &["", "1", "0", "-3", "2.5", "\"4\""][..]),
        ("initialBackoff", &["", "\"0s\"", "\"1\"", "1", "\"-1s\""]),
        ("maxBackoff", &["", "\"0s\"", "null"]),
        ("backoffMultiplier", &["", "0", "-1", "\"2\""]),
        (
            "retryableStatusCodes",
            &["", "[]", "[17]", "[\"GONE\"]", "14", "[-1]"],
        ),
    ] {
        for value in values {
            let error =
                ServiceConfig::from_json(&method(field, value)).expect_err("an invalid config");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert_eq!(error.outcome(), Outcome::NotSent);
            assert!(
                error.to_string().contains(field),
                "{field} {value}: {error}"
            );
        }
    }
    for (json, field) in [
        ("", "JSON"),
        ("[]", "object"),
        (r#"{ "methodConfig": {} }"#, "methodConfig"),
        (
            r#"{ "methodConfig": [{ "name": [{ "method": "m" }] }] }"#,
            "name",
        ),
        (r#"{ "methodConfig": [{ "name": [{}, {}] }] }"#, "name"),
        (
            r#"{ "methodConfig": [{ "name": [{}], "hedgingPolicy": {} }] }"#,
            "hedgingPolicy",
        ),
        (
            r#"{ "retryThrottling": { "maxTokens": 0, "tokenRatio": 1 } }"#,
            "maxTokens",
        ),
        (
            r#"{ "retryThrottling": { "maxTokens": 1001, "tokenRatio": 1 } }"#,
            "maxTokens",
        ),
        (
            r#"{ "retryThrottling": { "maxTokens": 10, "tokenRatio": 0 } }"#,
            "tokenRatio",
        ),
        (
            r#"{ "retryThrottling": { "maxTokens": 10, "tokenRatio": 0.0009 } }"#,
            "tokenRatio",
        ),
        (
            r#"{ "retryThrottling": { "maxTokens": 10 } }"#,
            "tokenRatio",
        ),
    ] {
        let error = ServiceConfig::from_json(json).expect_err(json);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{json}");
        assert!(error.to_string().contains(field), "{json}: {error}");
    }
}
