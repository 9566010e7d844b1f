//! What a person sees who turns tracing on: every change of a connection's state, and every retry.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
};

use actix_etcd::{Client, balancer::ConnectivityState};
use testbed::{Reply, ScriptedServer};
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
    process_isolation::is_alone,
    scripted_put::{PUT, done},
};

/// The fields of an event and of the spans around it; the event's own words are its `message`.
type Fields = BTreeMap<String, String>;

#[derive(Clone, Default)]
struct Traces(Arc<Mutex<Vec<Fields>>>);

impl Traces {
    /// The events with these words, in order.
    fn of(&self, message: &str) -> Vec<Fields> {
        let mut all = self.0.lock().unwrap().clone();
        all.retain(|fields| fields.get("message").is_some_and(|said| said == message));
        all
    }
}

struct Reading<'a>(&'a mut Fields);

impl Visit for Reading<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Traces {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Reading(&mut fields));
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
        event.record(&mut Reading(&mut fields));
        self.0.lock().unwrap().push(fields);
    }
}

/// Runs it on one thread with the client's actors, and gives what was traced meanwhile. Alone: what first happens on a
/// thread where nobody listens, tracing leaves out for all.
fn traced(story: impl AsyncFnOnce()) -> Traces {
    let traces = Traces::default();
    let subscriber = tracing_subscriber::registry().with(traces.clone());
    let _listening = tracing::subscriber::set_default(subscriber);
    actix_rt::System::new().block_on(story());
    traces
}

async fn here(server: &ScriptedServer) -> Client {
    let builder = Client::builder([server.endpoint()]).on_current_arbiter();
    builder.connect().await.unwrap()
}

#[test]
fn every_change_of_state_is_traced_with_its_endpoint_and_the_reason() {
    if !is_alone("client::logs::every_change_of_state_is_traced_with_its_endpoint_and_the_reason") {
        return;
    }
    let mut told = Vec::new();
    let mut endpoint = String::new();
    let traces = traced(async || {
        let server = ScriptedServer::start().await;
        endpoint = server.endpoint();
        let etcd = here(&server).await;
        let mut changes = etcd.connectivity_changes().await.unwrap();
        server.reset_connections();
        while told.last() != Some(&ConnectivityState::Ready) {
            told.push(changes.next().await.unwrap().state);
        }
    });
    let traces = traces.of("connectivity changed");
    assert!(traces.iter().all(|fields| fields["endpoint"] == endpoint));
    let states: Vec<_> = traces
        .iter()
        .map(|fields| fields["state"].clone())
        .collect();
    // The first connection was made before anybody listened.
    let told: Vec<_> = told.iter().map(ToString::to_string).collect();
    assert!(states.ends_with(&told), "{states:?} {told:?}");
    assert!(told.len() > 1 && states.len() > told.len(), "{states:?}");
    let failed = ConnectivityState::TransientFailure.to_string();
    let failed = traces.iter().find(|fields| fields["state"] == failed);
    assert!(failed.unwrap().contains_key("error"), "{failed:?}");
}

#[test]
fn every_retry_is_traced_with_its_request_the_endpoint_and_the_reason() {
    if !is_alone("client::logs::every_retry_is_traced_with_its_request_the_endpoint_and_the_reason")
    {
        return;
    }
    let mut endpoint = String::new();
    let traces = traced(async || {
        let server = ScriptedServer::start().await;
        endpoint = server.endpoint();
        server.on(PUT, |call| match call.nth {
            0 | 1 => Reply::status(2, "etcdserver: too many requests"),
            _ => done(),
        });
        here(&server).await.put("k", "v").await.unwrap();
    });
    let failed = traces.of("attempt failed");
    assert_eq!(failed.len(), 2, "{failed:?}");
    for fields in &failed {
        assert_eq!(
            (fields["rpc"].as_str(), &fields["endpoint"]),
            (PUT, &endpoint)
        );
        assert!(fields["error"].contains("too many requests"), "{fields:?}");
    }
    let waits = traces.of("next attempt later");
    let waits: Vec<_> = waits
        .iter()
        .map(|fields| (fields["rpc"].as_str(), fields["attempts"].as_str()))
        .collect();
    assert_eq!(waits, [(PUT, "1"), (PUT, "2")]);
}
