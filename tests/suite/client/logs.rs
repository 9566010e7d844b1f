//! Tracing events: each connectivity change, each retry, each hedge, endpoints of another cluster, and keys that block a
//! lock.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use actix_etcd::{Client, ErrorKind, balancer::ConnectivityState};
use testbed::{Cluster, Reply, STATUS, ScriptedServer, StatusResponse};
use tokio_stream::StreamExt;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use crate::support::{
    process_isolation::in_own_process,
    quiet_window::ready_members,
    scripted_put::{PUT, RANGE, put_reply, range_reply},
    wait::until,
};

/// Fields of an event and of the spans around it. The text of the event is its field `message`, its level the field
/// `level`.
type Fields = BTreeMap<String, String>;

#[derive(Clone, Default)]
struct RecordedEvents(Arc<Mutex<Vec<Fields>>>);

impl RecordedEvents {
    /// Returns the events with this message, in order.
    fn with_message(&self, message: &str) -> Vec<Fields> {
        let mut all = self.0.lock().unwrap().clone();
        all.retain(|fields| fields.get("message").is_some_and(|text| text == message));
        all
    }
}

struct FieldVisitor<'a>(&'a mut Fields);

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RecordedEvents {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut FieldVisitor(&mut fields));
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        for span in context.event_scope(event).into_iter().flatten() {
            fields.extend(
                span.extensions()
                    .get::<Fields>()
                    .cloned()
                    .unwrap_or_default(),
            );
        }
        event.record(&mut FieldVisitor(&mut fields));
        let level = event.metadata().level().to_string();
        fields.insert("level".to_owned(), level);
        self.0.lock().unwrap().push(fields);
    }
}

/// Runs `scenario` and the client's actors on this thread, and returns the events they emitted. Needs its own process:
/// tracing disables a callsite globally if it is first reached on a thread without a subscriber.
fn record_events(scenario: impl AsyncFnOnce()) -> RecordedEvents {
    let events = RecordedEvents::default();
    let subscriber = tracing_subscriber::registry().with(events.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    actix_rt::System::new().block_on(scenario());
    events
}

async fn connect_on_this_thread(server: &ScriptedServer) -> Client {
    let builder = Client::builder([server.endpoint()]).on_current_arbiter();
    builder.connect().await.unwrap()
}

#[test]
fn connectivity_changes_are_traced() {
    if !in_own_process!() {
        return;
    }
    let mut reported = Vec::new();
    let mut endpoint = String::new();
    let events = record_events(async || {
        let server = ScriptedServer::start().await;
        endpoint = server.endpoint();
        let etcd = connect_on_this_thread(&server).await;
        let mut changes = etcd.connectivity_changes().await.unwrap();
        server.reset_connections();
        while reported.last() != Some(&ConnectivityState::Ready) {
            reported.push(changes.next().await.unwrap().state);
        }
    });
    let events = events.with_message("connectivity changed");
    assert!(events.iter().all(|fields| fields["endpoint"] == endpoint));
    let states: Vec<_> = events
        .iter()
        .map(|fields| fields["state"].clone())
        .collect();
    // The first connection was established before the call of `connectivity_changes`.
    let reported: Vec<_> = reported.iter().map(ToString::to_string).collect();
    assert!(states.ends_with(&reported), "{states:?} {reported:?}");
    assert!(
        reported.len() > 1 && states.len() > reported.len(),
        "{states:?}"
    );
    let failed = ConnectivityState::TransientFailure.to_string();
    let failed = events.iter().find(|fields| fields["state"] == failed);
    assert!(failed.unwrap().contains_key("error"), "{failed:?}");
}

#[test]
fn retries_are_traced() {
    if !in_own_process!() {
        return;
    }
    let mut endpoint = String::new();
    let events = record_events(async || {
        let server = ScriptedServer::start().await;
        endpoint = server.endpoint();
        server.on(PUT, |call| match call.nth {
            0 | 1 => Reply::status(2, "etcdserver: too many requests"),
            _ => put_reply(),
        });
        connect_on_this_thread(&server)
            .await
            .put("k", "v")
            .await
            .unwrap();
    });
    let failed = events.with_message("attempt failed");
    assert_eq!(failed.len(), 2, "{failed:?}");
    for fields in &failed {
        assert_eq!(
            (fields["rpc"].as_str(), &fields["endpoint"]),
            (PUT, &endpoint)
        );
        assert!(fields["error"].contains("too many requests"), "{fields:?}");
    }
    let scheduled = events.with_message("retry scheduled");
    let scheduled: Vec<_> = scheduled
        .iter()
        .map(|fields| (fields["rpc"].as_str(), fields["attempts"].as_str()))
        .collect();
    assert_eq!(scheduled, [(PUT, "1"), (PUT, "2")]);
}

#[test]
fn hedges_are_traced() {
    if !in_own_process!() {
        return;
    }
    let mut endpoints = Vec::new();
    let events = record_events(async || {
        let servers = [ScriptedServer::start().await, ScriptedServer::start().await];
        let hangs = Arc::new(AtomicBool::new(true));
        for server in &servers {
            let hangs = hangs.clone();
            server.on(RANGE, move |_| {
                if hangs.swap(false, Ordering::SeqCst) {
                    return Reply::hang();
                }
                range_reply()
            });
        }
        endpoints.extend(servers.iter().map(ScriptedServer::endpoint));
        let builder = Client::builder(&endpoints).on_current_arbiter();
        let etcd = builder.connect().await.unwrap();
        until("both members are ready", || ready_members(&etcd) == 2).await;
        etcd.get("k").await.unwrap();
    });
    let hedges = events.with_message("hedge sent");
    let [hedge] = &hedges[..] else {
        panic!("{hedges:?}");
    };
    assert_eq!(
        (hedge["rpc"].as_str(), hedge["attempts"].as_str()),
        (RANGE, "2")
    );
    let mut named = [&hedge["endpoint"], &hedge["late_endpoint"]];
    named.sort();
    endpoints.sort();
    assert_eq!(named, [&endpoints[0], &endpoints[1]]);
}

#[test]
fn endpoint_of_other_cluster_is_warned_about_once() {
    if !in_own_process!() {
        return;
    }
    let mut endpoint = String::new();
    let events = record_events(async || {
        let foreign = ScriptedServer::start().await;
        foreign.on(STATUS, |_| {
            Reply::message(&StatusResponse::of_cluster(0xf0))
        });
        let (first, second) = (ScriptedServer::start().await, ScriptedServer::start().await);
        endpoint = foreign.endpoint();
        let endpoints = [&foreign, &first, &second].map(ScriptedServer::endpoint);
        let builder = Client::builder(endpoints).on_current_arbiter();
        let etcd = builder.connect().await.unwrap();
        until("the endpoint was refused several times", || {
            foreign.accepted() > 2
        })
        .await;
        let error = etcd.connectivity().remove(0).last_error.unwrap();
        assert_eq!(error.kind(), ErrorKind::ClusterChanged);
    });
    let message = "endpoint refused: its member belongs to another cluster";
    let warnings = events.with_message(message);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let field = |name: &str| warnings[0][name].as_str();
    assert_eq!(field("level"), "WARN");
    assert_eq!(field("endpoint"), endpoint);
    assert_eq!((field("cluster"), field("client_cluster")), ("f0", "1"));
}

#[test]
fn key_that_blocks_lock_is_traced() {
    if !in_own_process!() {
        return;
    }
    let events = record_events(async || {
        let cluster = Cluster::start(1).await;
        let builder = Client::builder(cluster.endpoints()).on_current_arbiter();
        let etcd = builder.connect().await.unwrap();
        etcd.put("critical/count", "1").await.unwrap();
        let mutex = etcd.mutex("critical").await.unwrap();
        let blocked = mutex.lock().await.unwrap_err();
        assert_eq!(blocked.kind(), ErrorKind::LockBlocked);
        etcd.shutdown().await;
    });
    let warnings = events.with_message("key blocks a lock queue");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let fields = ["level", "key", "name"].map(|field| warnings[0][field].as_str());
    assert_eq!(fields, ["WARN", "critical/count", "critical"]);
}
