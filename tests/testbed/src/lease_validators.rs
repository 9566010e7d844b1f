//! Checks the guarantees of a kept lease, over all events that its owner received.
//!
//! After *renewed* the server has the lease; at *at risk* and *expired* its deadline has passed; after *lost* the
//! server does not have the lease and the client sends no keepalive. The events are compared with `TimeToLive`
//! responses from an undisturbed connection, and with the keepalives that a server received. A lease that has ended
//! never returns, so few probes suffice.
//!
//! All times are durations since the start of the test, on one monotonic clock.

use std::time::Duration;

/// Reason of a lost lease, as reported to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseLoss {
    /// The lease expired.
    Expired,
    /// The lease was revoked.
    Revoked,
    /// No member responded in time; the server may still have the lease.
    NeverConfirmed,
    /// A reason on the client's side: missing permission, shutdown.
    Other,
}

/// Event that the owner of a lease received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerEvent {
    /// The lease was granted or renewed. It exists until `deadline`, unless it is revoked.
    Renewed {
        /// Deadline of the lease.
        deadline: Duration,
    },
    /// The deadline passed without a keepalive response.
    AtRisk {
        /// Deadline of the lease.
        deadline: Duration,
    },
    /// The lease is lost. This is the last event.
    Lost(LeaseLoss),
}

/// `TimeToLive` response of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Time of the request.
    pub requested: Duration,
    /// Time of the response.
    pub responded: Duration,
    /// Remaining seconds; 0 or less if the lease does not exist.
    pub ttl: i64,
}

/// Record of one lease.
#[derive(Debug, Clone, Default)]
pub struct LeaseRecord {
    /// Events that the owner received, with their times.
    pub owner_events: Vec<(Duration, OwnerEvent)>,
    /// Probes of the server, in any order.
    pub probes: Vec<Probe>,
    /// Times at which keepalives reached a server, in any order.
    pub keepalives: Vec<Duration>,
    /// Time at which a revoke was started, if any.
    pub revoked: Option<Duration>,
    /// Longest time between a decision of the client and its record.
    pub slack: Duration,
}

impl LeaseRecord {
    /// Runs all validators and returns the first violation.
    pub fn validate(&self) -> Result<(), String> {
        self.check_lost_is_last()?;
        self.check_renewed_exists()?;
        self.check_exists_until_deadline()?;
        self.check_at_risk_after_deadline()?;
        self.check_expired_after_deadline()?;
        self.check_lost_is_gone()?;
        self.check_no_keepalive_after_lost()
    }

    /// No event follows *lost*, and times do not decrease.
    pub fn check_lost_is_last(&self) -> Result<(), String> {
        for pair in self.owner_events.windows(2) {
            let [(first_at, first), (second_at, second)] = pair else {
                continue;
            };
            if let OwnerEvent::Lost(reason) = first {
                return Err(format!(
                    "{second:?} at {second_at:?} after lost ({reason:?}) at {first_at:?}"
                ));
            }
            if second_at < first_at {
                return Err(format!(
                    "{second:?} at {second_at:?}, recorded after {first_at:?}"
                ));
            }
        }
        Ok(())
    }

    /// *Renewed*: no earlier probe reported the lease as gone.
    pub fn check_renewed_exists(&self) -> Result<(), String> {
        for (at, event) in &self.owner_events {
            let OwnerEvent::Renewed { .. } = event else {
                continue;
            };
            let violation = self
                .failed_probes()
                .find(|probe| probe.responded + self.slack < *at);
            if let Some(probe) = violation {
                return Err(format!(
                    "renewed at {at:?}, but the lease was gone at {:?}",
                    probe.responded
                ));
            }
        }
        Ok(())
    }

    /// *Renewed*: the server has the lease until its deadline, unless it is revoked.
    pub fn check_exists_until_deadline(&self) -> Result<(), String> {
        for (at, event) in &self.owner_events {
            let OwnerEvent::Renewed { deadline } = event else {
                continue;
            };
            let violation = self.failed_probes().find(|probe| {
                probe.responded < *deadline
                    && self.revoked.is_none_or(|revoked| probe.responded < revoked)
            });
            if let Some(probe) = violation {
                return Err(format!(
                    "renewed at {at:?} until {deadline:?}, but the lease was gone at {:?}",
                    probe.responded
                ));
            }
        }
        Ok(())
    }

    /// *At risk*: the last deadline has passed.
    pub fn check_at_risk_after_deadline(&self) -> Result<(), String> {
        self.check_after_deadline("at risk", |event| {
            matches!(event, OwnerEvent::AtRisk { .. })
        })
    }

    /// *Expired*: the last deadline has passed.
    pub fn check_expired_after_deadline(&self) -> Result<(), String> {
        self.check_after_deadline("expired", |event| {
            matches!(event, OwnerEvent::Lost(LeaseLoss::Expired))
        })
    }

    /// *Expired* or *revoked*: the server no longer has the lease.
    pub fn check_lost_is_gone(&self) -> Result<(), String> {
        let Some((at, reason @ (LeaseLoss::Expired | LeaseLoss::Revoked))) = self.lost() else {
            return Ok(());
        };
        match self
            .probes
            .iter()
            .find(|probe| probe.ttl > 0 && probe.requested > at)
        {
            Some(probe) => Err(format!(
                "lost ({reason:?}) at {at:?}, but the lease had {} s left at {:?}",
                probe.ttl, probe.requested
            )),
            None => Ok(()),
        }
    }

    /// *Lost* for any reason: the client sends no more keepalives.
    pub fn check_no_keepalive_after_lost(&self) -> Result<(), String> {
        let Some((at, reason)) = self.lost() else {
            return Ok(());
        };
        match self.keepalives.iter().find(|sent| **sent > at + self.slack) {
            Some(sent) => Err(format!(
                "lost ({reason:?}) at {at:?}, but kept alive at {sent:?}"
            )),
            None => Ok(()),
        }
    }

    fn check_after_deadline(
        &self,
        name: &str,
        selects: impl Fn(&OwnerEvent) -> bool,
    ) -> Result<(), String> {
        let mut deadline = Duration::ZERO;
        for (at, event) in &self.owner_events {
            if let OwnerEvent::Renewed { deadline: renewed } = event {
                deadline = deadline.max(*renewed);
            }
            if selects(event) && *at < deadline {
                return Err(format!(
                    "{name} at {at:?}, before the deadline at {deadline:?}"
                ));
            }
        }
        Ok(())
    }

    fn failed_probes(&self) -> impl Iterator<Item = &Probe> {
        self.probes.iter().filter(|probe| probe.ttl <= 0)
    }

    fn lost(&self) -> Option<(Duration, LeaseLoss)> {
        self.owner_events
            .iter()
            .find_map(|(at, event)| match event {
                OwnerEvent::Lost(reason) => Some((*at, *reason)),
                OwnerEvent::Renewed { .. } | OwnerEvent::AtRisk { .. } => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, LeaseLoss, LeaseRecord, OwnerEvent, Probe};

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn probe(at: u64, ttl: i64) -> Probe {
        Probe {
            requested: secs(at),
            responded: secs(at),
            ttl,
        }
    }

    /// Granted for 5 s, renewed at 2 s, no response from then on, expired at 9 s.
    fn record() -> LeaseRecord {
        LeaseRecord {
            owner_events: vec![
                (secs(0), OwnerEvent::Renewed { deadline: secs(5) }),
                (secs(2), OwnerEvent::Renewed { deadline: secs(7) }),
                (secs(7), OwnerEvent::AtRisk { deadline: secs(7) }),
                (secs(9), OwnerEvent::Lost(LeaseLoss::Expired)),
            ],
            probes: vec![probe(1, 4), probe(6, 1), probe(8, -1), probe(10, -1)],
            keepalives: vec![secs(2), secs(4), secs(8)],
            revoked: None,
            slack: Duration::from_millis(100),
        }
    }

    #[track_caller]
    fn assert_violation(record: &LeaseRecord, text: &str) {
        let message = record
            .validate()
            .expect_err("the violation was not detected");
        assert!(
            message.contains(text),
            "{message:?} does not contain {text:?}"
        );
    }

    #[test]
    fn valid_record_passes() {
        assert_eq!(record().validate(), Ok(()));
        assert_eq!(LeaseRecord::default().validate(), Ok(()));
    }

    #[test]
    fn event_after_lost_fails() {
        let mut record = record();
        record
            .owner_events
            .push((secs(10), OwnerEvent::AtRisk { deadline: secs(7) }));
        assert_violation(&record, "after lost (Expired) at 9s");
    }

    #[test]
    fn decreasing_event_time_fails() {
        let mut record = record();
        record.owner_events[1].0 = secs(8);
        assert_violation(&record, "recorded after 8s");
    }

    #[test]
    fn renewal_after_lease_is_gone_fails() {
        let mut record = record();
        record
            .owner_events
            .insert(3, (secs(9), OwnerEvent::Renewed { deadline: secs(9) }));
        assert_violation(&record, "renewed at 9s, but the lease was gone at 8s");
        record.slack = secs(2);
        assert_eq!(record.check_renewed_exists(), Ok(()), "within the slack");
    }

    #[test]
    fn lease_gone_before_deadline_fails_unless_revoked() {
        let mut record = record();
        record.probes.push(probe(6, 0));
        assert_violation(
            &record,
            "renewed at 2s until 7s, but the lease was gone at 6s",
        );
        record.revoked = Some(secs(5));
        assert_eq!(record.validate(), Ok(()));
        record.probes.push(probe(4, 0));
        assert_violation(&record, "gone at 4s");
    }

    #[test]
    fn risk_or_expiry_before_deadline_fails() {
        let mut early = record();
        early.owner_events[2].0 = secs(6);
        assert_violation(&early, "at risk at 6s, before the deadline at 7s");
        let mut early = record();
        early.owner_events.remove(2);
        early.owner_events[2].0 = secs(6);
        early.keepalives.clear();
        assert_violation(&early, "expired at 6s, before the deadline at 7s");
        early.owner_events[2].1 = OwnerEvent::Lost(LeaseLoss::Revoked);
        early.probes = vec![probe(6, 0)];
        early.revoked = Some(secs(5));
        assert_eq!(
            early.validate(),
            Ok(()),
            "a revoke may come before the deadline"
        );
    }

    #[test]
    fn loss_while_server_has_lease_fails() {
        let mut record = record();
        record.probes = vec![probe(10, 3)];
        assert_violation(
            &record,
            "lost (Expired) at 9s, but the lease had 3 s left at 10s",
        );
        record.owner_events[3].1 = OwnerEvent::Lost(LeaseLoss::NeverConfirmed);
        assert_eq!(
            record.validate(),
            Ok(()),
            "the server may have a lease that was never confirmed"
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
            record.keepalives.push(secs(10));
            assert_violation(&record, "but kept alive at 10s");
        }
    }
}
