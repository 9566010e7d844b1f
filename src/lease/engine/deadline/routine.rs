//! Routine checks and renewals, which the keeper performs without the lease's actor.
//!
//! Almost every keepalive is sent on time and its response arrives at once. Waking the lease's actor for each would be
//! most of its cost. So the keeper makes the same decision as the actor, on a copy of the deadline, and stores the
//! result only if it is routine. Otherwise the deadline stays unchanged and the actor decides.

use std::time::Instant;

use super::{Deadline, ResponseEffect, Step};

/// A check whose steps are routine: at most one keepalive, which is not a retry, and a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoutineCheck {
    /// Whether to send a keepalive.
    pub(crate) send: bool,
    pub(crate) next_check: Instant,
}

/// A response whose effect is routine: a renewal, and a wait for the next keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoutineRenewal {
    pub(crate) deadline: Instant,
    pub(crate) next_check: Instant,
}

impl Deadline {
    /// Takes the steps due at `now`. Returns `None` and changes nothing if one of them needs the lease's actor: a
    /// retry, a report or the end.
    pub(crate) fn routine_check(&mut self, now: Instant, jitter: f64) -> Option<RoutineCheck> {
        let mut next = self.clone();
        let mut step = next.next_step(now, jitter);
        let send = step == Step::Send { elsewhere: false };
        if send {
            step = next.next_step(now, jitter);
        }
        let Step::Wait { until: next_check } = step else {
            return None;
        };
        *self = next;
        Some(RoutineCheck { send, next_check })
    }

    /// Handles a response. Returns `None` and changes nothing if the lease's actor has to handle it, because the
    /// response renews nothing, ends the lease, or came so late that the next step is due.
    pub(crate) fn routine_renewal(
        &mut self,
        ttl: i64,
        sent_at: Instant,
        now: Instant,
        jitter: f64,
    ) -> Option<RoutineRenewal> {
        let mut next = self.clone();
        let effect = next.handle_response(ttl, sent_at, now, jitter)?;
        let ResponseEffect::Renewed { deadline } = effect else {
            return None;
        };
        let Step::Wait { until: next_check } = next.next_step(now, jitter) else {
            return None;
        };
        *self = next;
        Some(RoutineRenewal {
            deadline,
            next_check,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Event {
        TimerFired,
        /// Response to the last keepalive, or to the one before.
        ResponseReceived {
            ttl: i64,
            to_previous: bool,
        },
        StreamBroken,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::TimerFired),
            4 => (0..8_i64, prop::bool::weighted(0.2))
                .prop_map(|(ttl, to_previous)| Event::ResponseReceived { ttl, to_previous }),
            1 => Just(Event::StreamBroken),
        ]
    }

    /// Takes every step up to the next wait, as the lease's actor does.
    fn all_steps(lease: &mut Deadline, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            match lease.next_step(now, 0.5) {
                step @ (Step::Wait { .. } | Step::Ended) => {
                    steps.push(step);
                    return steps;
                }
                step => steps.push(step),
            }
        }
    }

    proptest! {
        #[test]
        fn routine_steps_equal_actor_steps(
            ttl in 1..8_i64,
            events in prop::collection::vec((prop_oneof![5 => 0..900_u64, 1 => 0..9_000_u64], event()), 1..80),
        ) {
            let mut now = Instant::now();
            let mut lease = Deadline::granted(ttl, now, now, 0.5);
            let mut sent = vec![now, now];
            all_steps(&mut lease, now);
            for (delay, event) in events {
                now += Duration::from_millis(delay);
                let before = lease.clone();
                let mut by_actor = lease.clone();
                match event {
                    Event::TimerFired => {
                        let routine = lease.routine_check(now, 0.5);
                        let steps = all_steps(&mut by_actor, now);
                        if let Some(RoutineCheck { send, next_check: until }) = routine {
                            if send {
                                prop_assert_eq!(steps[0], Step::Send { elsewhere: false });
                            }
                            prop_assert_eq!(&steps[usize::from(send)..], [Step::Wait { until }]);
                            prop_assert_eq!(&lease, &by_actor);
                        } else {
                            prop_assert_eq!(&lease, &before);
                        }
                        if steps.iter().any(|step| matches!(step, Step::Send { .. })) {
                            sent.push(now);
                        }
                    }
                    Event::ResponseReceived { ttl, to_previous } => {
                        let sent_at = sent[sent.len() - 1 - usize::from(to_previous)];
                        let routine = lease.routine_renewal(ttl, sent_at, now, 0.5);
                        let effect = by_actor.handle_response(ttl, sent_at, now, 0.5);
                        let steps = all_steps(&mut by_actor, now);
                        if steps.iter().any(|step| matches!(step, Step::Send { .. })) {
                            sent.push(now);
                        }
                        if let Some(RoutineRenewal { deadline, next_check: until }) = routine {
                            prop_assert_eq!(deadline, lease.deadline());
                            prop_assert_eq!(effect, Some(ResponseEffect::Renewed { deadline }));
                            prop_assert_eq!(steps, [Step::Wait { until }]);
                            prop_assert_eq!(&lease, &by_actor);
                        } else {
                            prop_assert_eq!(&lease, &before);
                        }
                    }
                    Event::StreamBroken => {
                        by_actor.handle_failure(sent[sent.len() - 1], now, 0.5);
                        let steps = all_steps(&mut by_actor, now);
                        if steps.iter().any(|step| matches!(step, Step::Send { .. })) {
                            sent.push(now);
                        }
                    }
                }
                lease = by_actor;
            }
        }
    }

    #[test]
    fn healthy_lease_needs_only_routine_steps() {
        let mut now = Instant::now();
        let mut lease = Deadline::granted(3, now, now, 0.5);
        let Step::Wait { until } = lease.next_step(now, 0.5) else {
            panic!("a keepalive is due at once");
        };
        now = until;
        for _ in 0..100 {
            assert!(lease.routine_check(now, 0.5).unwrap().send);
            assert!(
                !lease.routine_check(now, 0.5).unwrap().send,
                "one keepalive is in flight"
            );
            let sent_at = now;
            now += Duration::from_millis(400);
            let renewal = lease.routine_renewal(3, sent_at, now, 0.5);
            now = renewal.expect("healthy").next_check;
        }
    }

    #[test]
    fn retry_is_left_to_the_actor() {
        let start = Instant::now();
        let mut lease = Deadline::granted(6, start, start, 1.0);
        let due = start + Duration::from_secs(2);
        assert!(lease.routine_check(due, 0.5).unwrap().send);
        let timed_out = due + lease.response_timeout();
        assert_eq!(lease.routine_check(timed_out, 0.5), None);
        let step = lease.next_step(timed_out, 0.5);
        assert_eq!(step, Step::Send { elsewhere: true });
    }
}
