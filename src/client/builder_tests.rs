use super::*;

#[test]
fn the_defaults_are_those_the_docs_name() {
    let builder = ClientBuilder::new(["http://127.0.0.1:2379"]);
    let seconds = Duration::from_secs;
    assert_eq!(builder.request_timeout, seconds(5));
    assert_eq!(builder.dial.connect_timeout, seconds(2));
    assert_eq!(builder.dial.max_response_size, usize::MAX);
    assert_eq!(builder.dial.ping_interval, Some(seconds(10)));
    assert_eq!(builder.dial.ping_timeout, seconds(3));
    assert_eq!(builder.shutdown_grace, seconds(1));
    assert_eq!(builder.auto_sync, None);
    assert!(!builder.on_current_arbiter && !builder.follow_cluster);
}
