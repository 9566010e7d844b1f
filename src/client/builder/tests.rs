use super::*;
use crate::error::ErrorKind;

#[test]
fn defaults_match_the_docs() {
    let builder = ClientBuilder::new(["http://127.0.0.1:2379"]);
    let seconds = Duration::from_secs;
    assert_eq!(builder.request_options.timeout, seconds(5));
    assert_eq!(builder.dial.connect_timeout, seconds(2));
    assert_eq!(builder.dial.max_response_size, usize::MAX);
    assert_eq!(builder.dial.ping_interval, Some(seconds(10)));
    assert_eq!(builder.dial.ping_timeout, seconds(3));
    assert_eq!(builder.shutdown_grace, seconds(1));
    assert_eq!(builder.auto_sync, None);
    assert_eq!(builder.watch_streams.watches_per_stream, 256);
    assert_eq!(builder.watch_streams.progress_interval, Some(seconds(10)));
    assert_eq!(builder.max_in_flight, 2_000);
    assert!(!builder.on_current_arbiter && !builder.follow_cluster_change);
    assert!(builder.hedging);
}

#[test]
fn invalid_option_is_named_once() {
    let builder = || ClientBuilder::new(["http://127.0.0.1:2379"]);
    for (name, builder) in [
        ("request_timeout", builder().request_timeout(Duration::ZERO)),
        ("connect_timeout", builder().connect_timeout(Duration::ZERO)),
        ("ping_timeout", builder().ping_timeout(Duration::ZERO)),
        ("ping_interval", builder().ping_interval(Duration::ZERO)),
        ("auto_sync", builder().auto_sync(Duration::ZERO)),
        ("token_lifetime", builder().token_lifetime(Duration::ZERO)),
        ("watches_per_stream", builder().watches_per_stream(0)),
        (
            "watch_progress_interval",
            builder().watch_progress_interval(Duration::ZERO),
        ),
        ("max_in_flight", builder().max_in_flight(0)),
    ] {
        let error = builder.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        assert_eq!(error.to_string().matches(name).count(), 1, "{error}");
    }
}

#[test]
fn mixed_endpoints_need_permission() {
    let mixed = ["http://a:2379", "https://b:2379"];
    let error = parse_endpoints(&mixed, &Tls::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidEndpoint);
    assert!(
        error.to_string().contains("allow_plain_endpoints"),
        "{error}"
    );
    let none: [&str; 0] = [];
    let error = parse_endpoints(&none, &Tls::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoEndpoints);
}
