//! Mode `watch`: throughput of one watch, `peers watch client=ours events=1000000 endpoints=…`.

use std::{future::Future, time::Instant};

use crate::{
    arguments::Arguments,
    clients::{Connect, EtcdClient, OnArbiter, OnOwnThread},
    load::cpu_time,
};

/// A client that can watch.
pub trait ReceiveEvents: Connect {
    /// Opens a watch and receives `events` events.
    fn receive_events(&mut self, events: u64) -> impl Future<Output = Result<(), String>>;
}

macro_rules! ours {
    ($($client:ty),*) => {
        $(impl ReceiveEvents for $client {
            async fn receive_events(&mut self, events: u64) -> Result<(), String> {
                let open = self.client().watch("bench/key").status_events();
                let mut watch = open.await.map_err(|error| error.to_string())?;
                let mut received = 0;
                while received < events {
                    match watch.next().await {
                        Some(actix_etcd::WatchEvent::Events(events)) => received += events.len() as u64,
                        other => return Err(format!("unexpected item {other:?}")),
                    }
                }
                Ok(())
            }
        })*
    };
}
ours!(OnArbiter, OnOwnThread);

impl ReceiveEvents for EtcdClient {
    async fn receive_events(&mut self, events: u64) -> Result<(), String> {
        let opened = self.client().watch("bench/key", None).await;
        let mut watch = opened.map_err(|error| error.to_string())?;
        let mut received = 0;
        while received < events {
            let message = watch.message().await.map_err(|error| error.to_string())?;
            let message = message.ok_or("the watch ended")?;
            received += message.events().len() as u64;
        }
        Ok(())
    }
}

pub async fn run<C: ReceiveEvents>(arguments: &Arguments) -> Result<(), String> {
    let mut client = C::connect(&arguments.endpoints).await?;
    let (started, cpu) = (Instant::now(), cpu_time()?);
    client.receive_events(arguments.events).await?;
    let (elapsed, cpu) = (started.elapsed(), cpu_time()?.saturating_sub(cpu));
    #[expect(clippy::cast_precision_loss, reason = "a count of events is small")]
    let events = arguments.events as f64;
    println!(
        "{{\"events_per_s\":{:.0},\"cpu_us\":{:.3}}}",
        events / elapsed.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / events,
    );
    Ok(())
}
