//! Property tests of the pairing with models of etcd and of its gRPC proxy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{
    CreatePairing, NO_WATCH, Removed, ResponseTarget,
    tests::{canceled, created, events, refused},
};
use crate::proto::WatchResponse;

/// A step of a server that handles requests in order.
#[derive(Debug, Clone)]
enum ServerStep {
    Create { refuse: bool },
    Cancel { nth: usize },
    Compact { nth: usize },
    Receive { nth: usize },
}

fn step() -> impl Strategy<Value = ServerStep> {
    prop_oneof![
        3 => any::<bool>().prop_map(|refuse| ServerStep::Create { refuse }),
        1 => (0..20_usize).prop_map(|nth| ServerStep::Cancel { nth }),
        1 => (0..20_usize).prop_map(|nth| ServerStep::Compact { nth }),
        2 => (0..20_usize).prop_map(|nth| ServerStep::Receive { nth }),
    ]
}

/// A server that sends each response after those it depends on.
#[derive(Default)]
struct Server {
    /// Whether it chooses the ids, from 0 upward, and responds to creates in any order.
    is_proxy: bool,
    next_id: i64,
    /// Names of its watches by id.
    watches: BTreeMap<i64, u32>,
    /// Responses on their way, each group in order. The groups of a proxy overtake each other.
    queues: Vec<VecDeque<WatchResponse>>,
}

impl Server {
    fn create(&mut self, id: i64, name: u32, refuse: bool) {
        let mut responses = VecDeque::new();
        if refuse {
            responses.push_back(refused());
        } else {
            let id = if self.is_proxy { self.next_id } else { id };
            self.next_id += 1;
            self.watches.insert(id, name);
            responses.extend([created(id), events(id)]);
        }
        self.push(responses);
    }

    fn cancel(&mut self, id: i64) {
        if self.watches.remove(&id).is_some() {
            self.push([canceled(id)].into());
        }
    }

    fn compact(&mut self, nth: usize) {
        if let Some(&id) = self.watches.keys().nth(nth) {
            let compacted = WatchResponse {
                compact_revision: 9,
                ..canceled(id)
            };
            self.push([compacted].into());
        }
    }

    fn push(&mut self, responses: VecDeque<WatchResponse>) {
        // A proxy sends the responses for one watch in order.
        let id = responses.front().map(|first| first.watch_id);
        let same_watch = |queue: &VecDeque<WatchResponse>| {
            id != Some(NO_WATCH) && queue.back().map(|last| last.watch_id) == id
        };
        let queue = if self.is_proxy {
            self.queues.iter().position(same_watch)
        } else {
            (!self.queues.is_empty()).then_some(0)
        };
        match queue {
            Some(index) => self.queues[index].extend(responses),
            None => self.queues.push(responses),
        }
    }

    fn receive(&mut self, nth: usize) -> Option<WatchResponse> {
        self.queues.retain(|queue| !queue.is_empty());
        let nth = nth % self.queues.len().max(1);
        self.queues.get_mut(nth)?.pop_front()
    }
}

proptest! {
    /// With any requests in flight, every response is paired with its watch, and no state is left over.
    #[test]
    fn every_response_finds_its_watch(
        is_proxy: bool,
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut pairing = CreatePairing::default();
        let mut server = Server { is_proxy, ..Server::default() };
        // Ids for cancels and names of the watches that are wanted; names of those that the server refuses.
        let (mut wanted, mut refusals, mut name) = (BTreeMap::new(), BTreeSet::new(), 0_u32);
        let mut steps = steps.into_iter();
        loop {
            match steps.next().unwrap_or(ServerStep::Receive { nth: 0 }) {
                ServerStep::Create { refuse } => {
                    name += 1;
                    wanted.insert(name, pairing.create(name, 1));
                    if refuse {
                        refusals.insert(name);
                    }
                }
                ServerStep::Cancel { nth } => if let Some((&watch, &id)) = wanted.iter().nth(nth) {
                    wanted.remove(&watch);
                    match pairing.cancel(id) {
                        Removed::Sent(removed) => {
                            prop_assert_eq!(removed, watch);
                            server.cancel(id);
                        }
                        Removed::Unsent(removed) => prop_assert_eq!(removed, watch),
                        Removed::Nothing => prop_assert!(false, "{} was not removed", watch),
                    }
                },
                ServerStep::Compact { nth } => server.compact(nth),
                ServerStep::Receive { nth } => {
                    let Some(response) = server.receive(nth) else {
                        if steps.len() == 0 { break }
                        continue;
                    };
                    match pairing.pair(&response) {
                        ResponseTarget::Created { id, watch } => {
                            prop_assert_eq!(id, response.watch_id);
                            let name = *watch;
                            prop_assert_eq!(server.watches.get(&id), Some(&name));
                            wanted.insert(name, id);
                        }
                        ResponseTarget::Watch { watch } => {
                            prop_assert_eq!(wanted.get(watch), Some(&response.watch_id));
                            prop_assert_eq!(server.watches.get(&response.watch_id), Some(&*watch));
                        }
                        ResponseTarget::Refused { watch } => {
                            prop_assert!(refusals.contains(&watch));
                            prop_assert!(wanted.remove(&watch).is_some());
                        }
                        ResponseTarget::Canceled { id, watch, send_cancel } => {
                            prop_assert_eq!(wanted.remove(&watch), Some(id));
                            prop_assert!(send_cancel);
                            server.cancel(id);
                        }
                        ResponseTarget::Unknown { id } => {
                            prop_assert!(is_proxy);
                            server.cancel(id);
                        }
                        ResponseTarget::Ignored => {}
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
            }
            while let Some(create) = pairing.next_to_send() {
                let refuse = refusals.contains(create.watch);
                server.create(create.id, *create.watch, refuse);
            }
        }
        prop_assert_eq!(pairing.len(), wanted.len());
        prop_assert_eq!(pairing.in_flight(), 0);
        prop_assert!(pairing.canceling.is_empty() && pairing.unknown_ids.is_empty());
        let mut resumed: Vec<u32> = pairing.into_watches().collect();
        resumed.sort_unstable();
        prop_assert_eq!(resumed, wanted.into_keys().collect::<Vec<_>>());
    }
}
