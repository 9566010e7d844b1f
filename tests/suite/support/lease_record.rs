//! Records what the owner of a lease was told and what the servers say of it, for the validators.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix_etcd::lease::{Lease, LeaseEvent, LostReason};
use serde_json::json;
use testbed::{
    Cluster,
    lease_validators::{LeaseLoss, LeaseRecord, OwnerEvent, Probe},
    number,
};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

use crate::support::wait::until;

/// The loss that was told, and when.
fn lost(record: &LeaseRecord) -> Option<&(Duration, OwnerEvent)> {
    let mut told = record.owner_events.iter();
    told.find(|(_, told)| matches!(told, OwnerEvent::Lost(_)))
}

/// Records until it is finished.
pub struct Recorder {
    start: Instant,
    record: Arc<Mutex<LeaseRecord>>,
    asks_servers: bool,
    tasks: Vec<JoinHandle<()>>,
}

impl Recorder {
    /// Listens to a lease, and asks every member of the cluster for it, past the proxies.
    pub fn start(lease: &Lease, cluster: Option<&Cluster>) -> Self {
        let start = Instant::now();
        let since = move |at: Instant| at.saturating_duration_since(start);
        let record = Arc::new(Mutex::new(LeaseRecord {
            owner_events: vec![(
                Duration::ZERO,
                OwnerEvent::Renewed {
                    deadline: since(lease.deadline()),
                },
            )],
            slack: Duration::from_millis(300),
            ..LeaseRecord::default()
        }));
        let (told, mut events) = (record.clone(), lease.events());
        let mut tasks = vec![tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let event = match event {
                    LeaseEvent::Renewed { deadline } => OwnerEvent::Renewed {
                        deadline: since(deadline),
                    },
                    LeaseEvent::AtRisk { deadline } => OwnerEvent::AtRisk {
                        deadline: since(deadline),
                    },
                    LeaseEvent::Lost(reason) => OwnerEvent::Lost(match reason {
                        LostReason::Expired => LeaseLoss::Expired,
                        LostReason::Revoked => LeaseLoss::Revoked,
                        LostReason::NeverConfirmed => LeaseLoss::NeverConfirmed,
                        _ => LeaseLoss::Other,
                    }),
                    other => panic!("unknown event {other:?}"),
                };
                told.lock()
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
                    let answer = cluster.api(
                        member.index(),
                        "/v3/lease/timetolive",
                        json!({"ID": id.to_string()}),
                    );
                    if let Ok(Ok(answer)) =
                        tokio::time::timeout(Duration::from_secs(1), answer).await
                    {
                        // Zero is left out of JSON: only a lease that is gone has no granted TTL.
                        let granted: i64 = number(&answer["grantedTTL"]);
                        let ttl = if granted > 0 {
                            number::<i64>(&answer["TTL"]).max(1)
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
            asks_servers: cluster.is_some(),
            tasks,
        }
    }

    /// The test is about to revoke the lease.
    pub fn revoking(&self) {
        self.record.lock().unwrap().revoked = Some(self.start.elapsed());
    }

    /// Adds when keepalives reached a server.
    pub fn keepalives(&self, times: &[Instant]) {
        let since = |at: &Instant| at.saturating_duration_since(self.start);
        self.record.lock().unwrap().keepalives = times.iter().map(since).collect();
    }

    /// What was recorded so far; fails if it breaks a promise.
    pub fn check(&self) -> LeaseRecord {
        let record = self.record.lock().unwrap().clone();
        if let Err(violation) = record.validate() {
            panic!("{violation}\n{:#?}", record.owner_events);
        }
        record
    }

    /// Fails if the lease was lost, or if servers are asked and none says that it is there.
    pub async fn check_alive(&self) -> LeaseRecord {
        if self.asks_servers {
            let now = self.start.elapsed();
            until("a server says that it is there", || {
                let record = self.record.lock().unwrap();
                let mut probes = record.probes.iter();
                probes.any(|probe| probe.requested >= now && probe.ttl > 0)
                    || lost(&record).is_some()
            })
            .await;
        }
        let record = self.check();
        let lost = lost(&record);
        assert!(lost.is_none(), "{lost:?} in {record:#?}");
        record
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
