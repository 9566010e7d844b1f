//! Where the legs of a watch run, or why they do not.

use std::sync::Arc;

use tokio::time::Instant;

use super::StreamProgress;
use crate::watch::WatchStatus;

/// The stream that carries a leg.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) progress: Arc<StreamProgress>,
    /// Number of the last progress request before the watch was created. Later requests cover the watch.
    pub(crate) created_after: u64,
    /// Id of the member, or 0.
    pub(crate) member: u64,
}

/// Why a leg has no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detachment {
    Reconnecting,
    Paused,
    Resyncing,
    Ended,
}

#[derive(Debug)]
pub(super) enum Place {
    Attached(Attachment),
    Detached { reason: Detachment, since: Instant },
}

impl Place {
    pub(super) fn status(&self) -> WatchStatus {
        match self {
            Self::Attached(attachment) => WatchStatus::Attached {
                endpoint: attachment.progress.endpoint.as_str().to_owned(),
                member: attachment.member,
            },
            Self::Detached { reason, since } => {
                let since = since.into_std();
                match reason {
                    Detachment::Reconnecting => WatchStatus::Reconnecting { since },
                    Detachment::Paused => WatchStatus::Paused { since },
                    Detachment::Resyncing => WatchStatus::Resyncing { since },
                    Detachment::Ended => WatchStatus::Ended,
                }
            }
        }
    }

    fn detachment(&self) -> Option<(Detachment, Instant)> {
        match self {
            Self::Attached(_) => None,
            Self::Detached { reason, since } => Some((*reason, *since)),
        }
    }

    /// Returns the place that describes a watch with two legs. If both are attached, `first_is_fresher` decides.
    pub(super) fn of_both<'a>(
        first: &'a Self,
        second: &'a Self,
        first_is_fresher: bool,
    ) -> &'a Self {
        use Detachment::{Ended, Paused, Reconnecting, Resyncing};
        let use_first = match (first.detachment(), second.detachment()) {
            (None, None) => first_is_fresher,
            // The first leg ends the watch, and reads the range again only if no leg can continue.
            (None, Some(_)) | (Some((Ended | Resyncing, _)), _) => true,
            (Some(_), None) => false,
            // The buffer has been full since the first pause.
            (Some((Paused, since)), Some((Paused, other))) => since <= other,
            // A leg served the watch until the last loss.
            (Some((Reconnecting, since)), Some((Reconnecting, other))) => since >= other,
            (Some(_), Some((other, _))) => other != Paused,
        };
        if use_first { first } else { second }
    }
}

/// One leg of a watch.
#[derive(Debug)]
pub(super) struct LegPlace {
    /// Attach attempt of the leg. Calls for other attempts are ignored; `None` ignores all.
    pub(super) attempt: Option<u32>,
    pub(super) place: Place,
}

impl LegPlace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            attempt: None,
            place: Place::Detached {
                reason: Detachment::Reconnecting,
                since: now,
            },
        }
    }

    /// Records that the leg has no stream. The time of a detachment for the same reason is kept.
    pub(super) fn detach(&mut self, attempt: Option<u32>, reason: Detachment, now: Instant) {
        self.attempt = attempt;
        let since = match self.place {
            Place::Detached {
                reason: same,
                since,
            } if same == reason => since,
            _ => now,
        };
        self.place = Place::Detached { reason, since };
    }

    pub(super) fn attachment(&self) -> Option<&Attachment> {
        match &self.place {
            Place::Attached(attachment) => Some(attachment),
            Place::Detached { .. } => None,
        }
    }
}
