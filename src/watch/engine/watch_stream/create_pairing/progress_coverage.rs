//! Decides which watches of a stream a progress response covers.
//!
//! A progress response with watch id −1 covers every watch that existed on the server when the server handled the
//! request. It and the response to a create pass through different queues on the server, so it can arrive *after* the
//! response to a create that was handled later, and then does not cover that watch. Trusting it would skip all past
//! events that the watch has not received yet. A watch that starts after the current revision is safe: such progress is
//! before its start.

use super::CreatePairing;

impl<W> CreatePairing<W> {
    /// Returns whether a progress request has no response yet.
    pub(crate) fn awaits_progress(&self) -> bool {
        self.progress_requests > 0
    }

    /// Records that a progress request was sent.
    pub(crate) fn progress_requested(&mut self) {
        self.progress_requests = self.progress_requests.saturating_add(1);
    }

    /// Records that the server ignored the oldest progress request without a response.
    pub(crate) fn progress_request_ignored(&mut self) {
        self.progress_requests = self.progress_requests.saturating_sub(1);
        for live in self.live.values_mut() {
            live.earlier_progress_requests = live.earlier_progress_requests.saturating_sub(1);
        }
    }

    /// Returns the watches that stream-wide progress at `revision` covers. A watch that requested progress and is not
    /// covered has to request it again.
    pub(crate) fn covered_by_progress(&mut self, revision: i64) -> impl Iterator<Item = &mut W> {
        self.progress_requests = self.progress_requests.saturating_sub(1);
        self.live.values_mut().filter_map(move |live| {
            // Progress beyond the create's own revision was certainly made after the create. Up to that revision it is
            // trusted only once every earlier request that could mislead the watch has a response.
            if revision <= live.created_at && live.earlier_progress_requests > 0 {
                live.earlier_progress_requests -= 1;
                return None;
            }
            Some(&mut live.watch)
        })
    }
}
