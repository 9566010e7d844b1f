//! What the server says on a stream, and to which watch.

use std::sync::Arc;

use super::{StreamActor, StreamAnswered, actor::Creating, reader::protocol};
use crate::{
    proto::WatchResponse,
    watch::engine::{
        News,
        creates::{Answer, Envelope},
    },
};

impl StreamActor {
    pub(super) fn hear(&mut self, response: WatchResponse) {
        let (revision, cluster_id) = response
            .header
            .as_ref()
            .map_or((0, 0), |header| (header.revision, header.cluster_id));
        let endpoint = self.connection.id;
        let envelope = Envelope {
            watch_id: response.watch_id,
            created: response.created,
            canceled: response.canceled,
            compact_revision: response.compact_revision,
            revision,
        };
        let cancelled = |response: WatchResponse| News::Cancelled {
            endpoint,
            compact_revision: response.compact_revision,
            reason: response.cancel_reason,
        };
        match self.creates.answer(envelope) {
            Answer::Created { id, who } => {
                // An id that is not ours, from a proxy: the cancel has to name it.
                self.ids.insert(who.watch, id);
                let there = who.tell(News::Created {
                    revision,
                    cluster_id,
                });
                self.drop_orphan(id, there);
                self.bear_fruit();
            }
            Answer::For { who } => {
                let news = if response.events.is_empty() {
                    News::Progress(revision)
                } else {
                    self.events += response.events.len();
                    // They are not in the queue yet, but all of them may be for it.
                    if who.queue.is_crowded_by(self.events) {
                        let last = self.crowded.last();
                        if !last.is_some_and(|last| Arc::ptr_eq(last, &who.queue)) {
                            self.crowded.push(who.queue.clone());
                        }
                    }
                    News::Events {
                        events: response.events,
                        fragment: response.fragment,
                    }
                };
                let there = who.tell(news);
                self.drop_orphan(response.watch_id, there);
            }
            Answer::Refused { who } => {
                who.tell(cancelled(response));
                self.bear_fruit();
                self.forget(who.watch);
            }
            Answer::Canceled { id, who, forget } => {
                if forget {
                    self.cancel(id);
                }
                who.tell(cancelled(response));
                self.forget(who.watch);
            }
            Answer::Broadcast => {
                for who in self.creates.broadcast(revision) {
                    who.tell(News::Progress(revision));
                }
            }
            Answer::Unwanted { id } => self.cancel(id),
            Answer::Nobody => {}
            Answer::Ambiguous => {
                self.creating = Creating::OwnIds;
                self.break_up(
                    protocol(
                        "the server chooses the ids of watches itself, and several are asked for",
                    )
                    .with_endpoint(self.connection.endpoint.name()),
                );
            }
            Answer::OutOfStep => self.break_up(
                protocol("the answers on the watch stream do not fit the requests")
                    .with_endpoint(self.connection.endpoint.name()),
            ),
        }
    }

    /// A create was answered: the member is worth streams.
    fn bear_fruit(&mut self) {
        if self.creating == Creating::Unanswered
            && let Some(hub) = self.hub.upgrade()
        {
            self.creating = Creating::Answered;
            hub.do_send(StreamAnswered {
                endpoint: self.connection.id,
            });
        }
    }

    /// A watch whose actor is gone without a word is cancelled.
    fn drop_orphan(&mut self, id: i64, there: bool) {
        if !there && let Some(who) = self.creates.cancel(id) {
            self.cancel(id);
            self.forget(who.watch);
        }
    }
}
