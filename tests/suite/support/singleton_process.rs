//! A node process that runs a singleton.

use std::time::Duration;

use actix::{Actor, Context, Handler, Message};
use actix_etcd::{Client, kv::put, recipes::election::Ownership};
use testbed::time_since_boot;

use crate::support::{
    lock_observation::report_beat,
    node_process::{EventKind, NodePhase, NodeTask, report},
};

pub const TTL: Duration = Duration::from_secs(2);
/// Short enough that a node always has work to do when it resumes after a pause.
const BEAT_INTERVAL: Duration = Duration::from_millis(2);
/// Messages that are queued at once. The node is usually paused while some are left.
const BEATS: usize = 10;
/// Time that the actor takes for a message.
const BEAT_DURATION: Duration = Duration::from_millis(1);

/// Reports its start, its beats and its end.
struct ReportingActor {
    leadership: Ownership,
}

impl Actor for ReportingActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        report(EventKind::Started, self.leadership.token());
    }
}

impl Drop for ReportingActor {
    fn drop(&mut self) {
        let held = self.leadership.clone();
        report(EventKind::Stopped, held.token());
        // A write by a stale holder, which etcd must reject if the next actor has started.
        actix_rt::spawn(async move {
            let write = held.txn().then([put("work", held.token().to_string())]);
            let applied = write.await.is_ok_and(|response| response.succeeded);
            let kind = if applied {
                EventKind::StaleWriteApplied
            } else {
                EventKind::StaleWriteRejected
            };
            report(kind, held.token());
        });
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Beat;

impl Handler<Beat> for ReportingActor {
    type Result = ();

    fn handle(&mut self, _: Beat, _: &mut Self::Context) {
        report_beat(time_since_boot(), &self.leadership);
        std::thread::sleep(BEAT_DURATION);
    }
}

/// In a process that [`NodeProcess::start`](super::node_process::NodeProcess::start) has started: runs a node until the
/// parent closes the standard input, then returns `true`. In any other process: returns `false` at once.
pub fn run_as_node() -> bool {
    let Some(node) = NodeTask::of_this_process() else {
        return false;
    };
    actix_rt::System::new().block_on(async {
        let etcd = Client::connect(&node.endpoints).await.unwrap();
        let make = |leadership| ReportingActor { leadership };
        let singleton = etcd.singleton("only").ttl(TTL).start(make).unwrap();
        while node.is_in(NodePhase::Work) {
            if let Some(actor) = singleton.addr() {
                for _ in 0..BEATS {
                    actor.do_send(Beat);
                }
            }
            tokio::time::sleep(BEAT_INTERVAL).await;
        }
        singleton.stop().await;
        etcd.shutdown().await;
    });
    true
}
