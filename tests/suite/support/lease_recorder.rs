//! Records the events of a lease and probes of it on the servers, for the validators.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::lease::{Lease, LeaseEvent, LeaseLost};
use serde_json::json;
use testbed::{
    Cluster,
    lease_validators::{LeaseLoss, LeaseRecord, OwnerEvent, Probe},
    number,
};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

use crate::support::wait::until;

/// Returns the loss event and its time.
fn loss(record: &LeaseRecord) -> Option<&(Duration, OwnerEvent)> {
    let mut events = record.owner_events.iter();
    events.find(|(_, event)| matches!(event, OwnerEvent::Lost(_)))
}

/// Records until it is dropped.
pub struct LeaseRecorder {
    start: Instant,
    record: Arc<Mutex<LeaseRecord>>,
    probes_servers: bool,
    tasks: Vec<JoinHandle<()>>,
}

impl LeaseRecorder {
    /// Records the events of the lease. With a cluster, also probes the lease on every member, bypassing the fault
    /// proxies.
    pub fn start(lease: &Lease, cluster: Option<&Cluster>) -> Self {
        let start = Instant::now();
        let since_start = move |at: Instant| at.saturating_duration_since(start);
        let record = Arc::new(Mutex::new(LeaseRecord {
            owner_events: vec![(
                Duration::ZERO,
                OwnerEvent::Renewed {
                    deadline: since_start(lease.deadline()),
                },
            )],
            slack: Duration::from_millis(300),
            ..LeaseRecord::default()
        }));
        let (recorded, mut events) = (record.clone(), lease.events());
        let mut tasks = vec![tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let event = match event {
                    LeaseEvent::Renewed { deadline } | LeaseEvent::Recovered { deadline } => {
                        OwnerEvent::Renewed {
                            deadline: since_start(deadline),
                        }
                    }
                    LeaseEvent::AtRisk { deadline } => OwnerEvent::AtRisk {
                        deadline: since_start(deadline),
                    },
                    LeaseEvent::Lost(reason) => OwnerEvent::Lost(match reason {
                        LeaseLost::Expired => LeaseLoss::Expired,
                        LeaseLost::Revoked => LeaseLoss::Revoked,
                        LeaseLost::NeverConfirmed => LeaseLoss::NeverConfirmed,
                        _ => LeaseLoss::Other,
                    }),
                    other => panic!("unknown event {other:?}"),
                };
                recorded
                    .lock()
                    .unwrap()
                    .owner_events
                    .push((start.elapsed(), event));
            }
        })];
        for member in cluster.map(Cluster::members).unwrap_or_default() {
            let (cluster, probes, id) = (cluster.unwrap().clone(), record.clone(), lease.id());
            tasks.push(tokio::spawn(async move {
                loop {
                    let requested = start.elapsed();
                    let request = cluster.api(
                        member.index(),
                        "/v3/lease/timetolive",
                        json!({"ID": id.to_string()}),
                    );
                    if let Ok(Ok(response)) =
                        tokio::time::timeout(Duration::from_secs(1), request).await
                    {
                        // JSON omits zeros: a response without a granted TTL means that the lease does not exist.
                        let granted: i64 = number(&response["grantedTTL"]);
                        let ttl = if granted > 0 {
                            number::<i64>(&response["TTL"]).max(1)
                        } else {
                            -1
                        };
                        probes.lock().unwrap().probes.push(Probe {
                            requested,
                            responded: start.elapsed(),
                            ttl,
                        });
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }));
        }
        Self {
            start,
            record,
            probes_servers: cluster.is_some(),
            tasks,
        }
    }

    /// Records that the test revokes the lease from now on.
    pub fn set_revoked(&self) {
        self.record.lock().unwrap().revoked = Some(self.start.elapsed());
    }

    /// Records the times at which keepalives reached a server.
    pub fn set_keepalives(&self, times: &[Instant]) {
        let since_start = |at: &Instant| at.saturating_duration_since(self.start);
        self.record.lock().unwrap().keepalives = times.iter().map(since_start).collect();
    }

    /// Returns the record so far. Panics if it violates a guarantee.
    pub fn check(&self) -> LeaseRecord {
        let record = self.record.lock().unwrap().clone();
        if let Err(violation) = record.validate() {
            panic!("{violation}\n{:#?}", record.owner_events);
        }
        record
    }

    /// Panics if the lease was lost, or if servers are probed and none confirms the lease.
    pub async fn check_alive(&self) -> LeaseRecord {
        if self.probes_servers {
            let now = self.start.elapsed();
            until("a server confirms the lease", || {
                let record = self.record.lock().unwrap();
                let mut probes = record.probes.iter();
                probes.any(|probe| probe.requested >= now && probe.ttl > 0)
                    || loss(&record).is_some()
            })
            .await;
        }
        let record = self.check();
        let loss = loss(&record);
        assert!(loss.is_none(), "{loss:?} in {record:#?}");
        record
    }
}

impl Drop for LeaseRecorder {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
