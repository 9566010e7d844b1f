//! The promises of a kept lease, checked over everything its owner was told.
//!
//! etcd has no such validators; these are ours: told *renewed*, the server has it; told *at risk* or
//! *expired*, its deadline has passed; told *lost*, the server does not have it and nobody keeps it
//! alive any more. The truth is what an undisturbed connection was told by `TimeToLive`, and the
//! keepalives a server received. A lease that is gone never comes back, which makes few probes enough.
//!
//! Times count from the start of the test, on one monotonic clock.

use std::time::Duration;

/// Why the owner was told that the lease is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseLoss {
    /// Its time was over.
    Expired,
    /// Someone revoked it.
    Revoked,
    /// No member answered in time; the server may have it.
    NeverConfirmed,
    /// Any reason of the client's own: no permission, shut down.
    Other,
}

/// What the owner of a lease was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerEvent {
    /// It was granted or renewed, and is there until `deadline` unless someone revokes it.
    Renewed {
        /// The end of its time.
        deadline: Duration,
    },
    /// The deadline has passed without an answer.
    AtRisk {
        /// The end of its time.
        deadline: Duration,
    },
    /// It is gone. Nothing follows.
    Lost(LeaseLoss),
}

/// What a member of the cluster said of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// When it was asked.
    pub asked: Duration,
    /// When its answer was there.
    pub answered: Duration,
    /// The seconds left; 0 or less if there is no such lease.
    pub ttl: i64,
}

/// Everything recorded of one lease.
#[derive(Debug, Clone, Default)]
pub struct LeaseRecord {
    /// What the owner was told, and when.
    pub owner_events: Vec<(Duration, OwnerEvent)>,
    /// What the server said, in any order.
    pub probes: Vec<Probe>,
    /// When keepalives reached a server, in any order.
    pub keepalives: Vec<Duration>,
    /// When someone began to revoke it.
    pub revoked: Option<Duration>,
    /// How long a message may take from the client's decision to the record.
    pub slack: Duration,
}

impl LeaseRecord {
    /// Runs every validator and gives the first violation.
    pub fn validate(&self) -> Result<(), String> {
        self.ends_once()?;
        self.renewed_is_there()?;
        self.deadline_is_kept()?;
        self.risk_is_real()?;
        self.expired_is_over()?;
        self.lost_is_gone()?;
        self.lost_is_left_alone()
    }

    /// Nothing is told after *lost*, and times never go back.
    pub fn ends_once(&self) -> Result<(), String> {
        for pair in self.owner_events.windows(2) {
            let [(at, first), (then, second)] = pair else {
                continue;
            };
            if let OwnerEvent::Lost(reason) = first {
                return Err(format!(
                    "told {second:?} at {then:?} after lost ({reason:?}) at {at:?}"
                ));
            }
            if then < at {
                return Err(format!(
                    "told {second:?} at {then:?}, recorded after {at:?}"
                ));
            }
        }
        Ok(())
    }

    /// OwnerEvent *renewed*: the server had not said before that it is gone.
    pub fn renewed_is_there(&self) -> Result<(), String> {
        for (at, told) in &self.owner_events {
            let OwnerEvent::Renewed { .. } = told else {
                continue;
            };
            let gone = self.gone().find(|probe| probe.answered + self.slack < *at);
            if let Some(probe) = gone {
                return Err(format!(
                    "told renewed at {at:?}, but it was gone at {:?}",
                    probe.answered
                ));
            }
        }
        Ok(())
    }

    /// OwnerEvent a deadline: the server has it until then, unless someone revoked it.
    pub fn deadline_is_kept(&self) -> Result<(), String> {
        for (at, told) in &self.owner_events {
            let OwnerEvent::Renewed { deadline } = told else {
                continue;
            };
            let broken = self.gone().find(|probe| {
                probe.answered < *deadline
                    && self.revoked.is_none_or(|revoked| probe.answered < revoked)
            });
            if let Some(probe) = broken {
                return Err(format!(
                    "told at {at:?} to be there until {deadline:?}, but it was gone at {:?}",
                    probe.answered
                ));
            }
        }
        Ok(())
    }

    /// OwnerEvent *at risk*: the last deadline has passed.
    pub fn risk_is_real(&self) -> Result<(), String> {
        self.after_the_deadline("at risk", |told| matches!(told, OwnerEvent::AtRisk { .. }))
    }

    /// OwnerEvent *expired*: the last deadline has passed.
    pub fn expired_is_over(&self) -> Result<(), String> {
        self.after_the_deadline("expired", |told| {
            matches!(told, OwnerEvent::Lost(LeaseLoss::Expired))
        })
    }

    /// OwnerEvent *expired* or *revoked*: the server does not have it any more.
    pub fn lost_is_gone(&self) -> Result<(), String> {
        let Some((at, reason @ (LeaseLoss::Expired | LeaseLoss::Revoked))) = self.lost() else {
            return Ok(());
        };
        match self
            .probes
            .iter()
            .find(|probe| probe.ttl > 0 && probe.asked > at)
        {
            Some(probe) => Err(format!(
                "told lost ({reason:?}) at {at:?}, but it had {} s left at {:?}",
                probe.ttl, probe.asked
            )),
            None => Ok(()),
        }
    }

    /// OwnerEvent *lost*, for any reason: nobody keeps it alive any more.
    pub fn lost_is_left_alone(&self) -> Result<(), String> {
        let Some((at, reason)) = self.lost() else {
            return Ok(());
        };
        match self.keepalives.iter().find(|sent| **sent > at + self.slack) {
            Some(sent) => Err(format!(
                "told lost ({reason:?}) at {at:?}, but kept alive at {sent:?}"
            )),
            None => Ok(()),
        }
    }

    fn after_the_deadline(
        &self,
        what: &str,
        is: impl Fn(&OwnerEvent) -> bool,
    ) -> Result<(), String> {
        let mut deadline = Duration::ZERO;
        for (at, told) in &self.owner_events {
            if let OwnerEvent::Renewed { deadline: renewed } = told {
                deadline = deadline.max(*renewed);
            }
            if is(told) && *at < deadline {
                return Err(format!(
                    "told {what} at {at:?}, before the deadline at {deadline:?}"
                ));
            }
        }
        Ok(())
    }

    fn gone(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|probe| probe.ttl <= 0)
    }

    fn lost(&self) -> Option<(Duration, LeaseLoss)> {
        self.owner_events.iter().find_map(|(at, told)| match told {
            OwnerEvent::Lost(reason) => Some((*at, *reason)),
            OwnerEvent::Renewed { .. } | OwnerEvent::AtRisk { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, LeaseLoss, LeaseRecord, OwnerEvent, Probe};

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn probe(at: u64, ttl: i64) -> Probe {
        Probe {
            asked: s(at),
            answered: s(at),
            ttl,
        }
    }

    /// Granted for 5 s, renewed at 2, silent from then on, expired at 9.
    fn record() -> LeaseRecord {
        LeaseRecord {
            owner_events: vec![
                (s(0), OwnerEvent::Renewed { deadline: s(5) }),
                (s(2), OwnerEvent::Renewed { deadline: s(7) }),
                (s(7), OwnerEvent::AtRisk { deadline: s(7) }),
                (s(9), OwnerEvent::Lost(LeaseLoss::Expired)),
            ],
            probes: vec![probe(1, 4), probe(6, 1), probe(8, -1), probe(10, -1)],
            keepalives: vec![s(2), s(4), s(8)],
            revoked: None,
            slack: Duration::from_millis(100),
        }
    }

    #[track_caller]
    fn violates(record: &LeaseRecord, text: &str) {
        let message = record.validate().expect_err("a violation was not seen");
        assert!(message.contains(text), "{message:?} does not say {text:?}");
    }

    #[test]
    fn right_record_passes() {
        assert_eq!(record().validate(), Ok(()));
        assert_eq!(LeaseRecord::default().validate(), Ok(()));
    }

    #[test]
    fn anything_after_lost_fails() {
        let mut record = record();
        record
            .owner_events
            .push((s(10), OwnerEvent::AtRisk { deadline: s(7) }));
        violates(&record, "after lost (Expired) at 9s");
    }

    #[test]
    fn time_that_goes_back_fails() {
        let mut record = record();
        record.owner_events[1].0 = s(8);
        violates(&record, "recorded after 8s");
    }

    #[test]
    fn renewed_after_the_server_said_gone_fails() {
        let mut record = record();
        record
            .owner_events
            .insert(3, (s(9), OwnerEvent::Renewed { deadline: s(9) }));
        violates(&record, "told renewed at 9s, but it was gone at 8s");
        record.slack = s(2);
        assert_eq!(record.renewed_is_there(), Ok(()), "within the slack");
    }

    #[test]
    fn deadline_that_the_server_does_not_keep_fails_unless_revoked() {
        let mut record = record();
        record.probes.push(probe(6, 0));
        violates(
            &record,
            "told at 2s to be there until 7s, but it was gone at 6s",
        );
        record.revoked = Some(s(5));
        assert_eq!(record.validate(), Ok(()));
        record.probes.push(probe(4, 0));
        violates(&record, "gone at 4s");
    }

    #[test]
    fn risk_or_expiry_before_the_deadline_fails() {
        let mut early = record();
        early.owner_events[2].0 = s(6);
        violates(&early, "told at risk at 6s, before the deadline at 7s");
        let mut early = record();
        early.owner_events.remove(2);
        early.owner_events[2].0 = s(6);
        early.keepalives.clear();
        violates(&early, "told expired at 6s, before the deadline at 7s");
        early.owner_events[2].1 = OwnerEvent::Lost(LeaseLoss::Revoked);
        early.probes = vec![probe(6, 0)];
        early.revoked = Some(s(5));
        assert_eq!(early.validate(), Ok(()), "revoked at any time");
    }

    #[test]
    fn lost_while_the_server_has_it_fails() {
        let mut record = record();
        record.probes = vec![probe(10, 3)];
        violates(
            &record,
            "told lost (Expired) at 9s, but it had 3 s left at 10s",
        );
        record.owner_events[3].1 = OwnerEvent::Lost(LeaseLoss::NeverConfirmed);
        assert_eq!(
            record.validate(),
            Ok(()),
            "never confirmed promises nothing"
        );
    }

    #[test]
    fn keepalive_after_lost_fails_for_any_reason() {
        for reason in [
            LeaseLoss::Expired,
            LeaseLoss::Revoked,
            LeaseLoss::NeverConfirmed,
            LeaseLoss::Other,
        ] {
            let mut record = record();
            record.owner_events[3].1 = OwnerEvent::Lost(reason);
            record.keepalives.push(s(10));
            violates(&record, "but kept alive at 10s");
        }
    }
}
