//! Tries the addresses of an endpoint until the first success.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use crate::error::Error;

/// Longest delay before the next address is tried while earlier attempts are running.
const MAX_DELAY: Duration = Duration::from_millis(250);

/// Result of the attempts at all addresses of an endpoint.
pub(super) struct AddressRace<A, T> {
    /// The first success and its address.
    pub(super) winner: Option<(A, T)>,
    /// Addresses whose attempts failed before the race ended, with their errors.
    pub(super) failed: Vec<(A, Error)>,
    /// Addresses without a result: at the deadline, or although the winner was started later.
    pub(super) silent: Vec<A>,
}

struct Attempt<A, F> {
    address: A,
    future: Pin<Box<F>>,
}

/// Tries the addresses in order. Starts the next attempt when one fails, or after a delay that leaves time for all
/// addresses before the deadline. The first success wins, and the other attempts are dropped.
pub(super) async fn race_addresses<A, T, F>(
    addresses: Vec<A>,
    deadline: Instant,
    attempt: impl Fn(A) -> F,
) -> AddressRace<A, T>
where
    A: Clone,
    F: Future<Output = Result<T, Error>>,
{
    let delay = next_address_delay(
        deadline.saturating_duration_since(Instant::now()),
        addresses.len(),
    );
    let mut waiting = addresses.into_iter();
    let mut running: Vec<Attempt<A, F>> = Vec::new();
    let mut failed = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            running.push(Attempt {
                address: address.clone(),
                future: Box::pin(attempt(address)),
            });
        }
        if running.is_empty() {
            return AddressRace {
                winner: None,
                failed,
                silent: Vec::new(),
            };
        }
        let wake_at = if waiting.len() == 0 {
            deadline
        } else {
            deadline.min(Instant::now() + delay)
        };
        tokio::select! {
            biased;
            (index, result) = next_result(&mut running) => {
                // Attempts before this index were started earlier.
                let address = running.remove(index).address;
                match result {
                    Ok(success) => {
                        running.truncate(index);
                        return AddressRace {
                            winner: Some((address, success)),
                            failed,
                            silent: addresses_of(running),
                        };
                    }
                    Err(error) => failed.push((address, error)),
                }
            }
            () = sleep_until(wake_at) => {
                if wake_at >= deadline {
                    return AddressRace { winner: None, failed, silent: addresses_of(running) };
                }
            }
        }
    }
}

/// Returns the delay between the starts of two attempts.
fn next_address_delay(time_left: Duration, addresses: usize) -> Duration {
    let shares = u32::try_from(addresses).unwrap_or(u32::MAX).max(1);
    MAX_DELAY.min(time_left / shares.saturating_add(1))
}

/// Resolves with the index and the result of the first attempt that finishes.
async fn next_result<A, T, F>(running: &mut [Attempt<A, F>]) -> (usize, Result<T, Error>)
where
    F: Future<Output = Result<T, Error>>,
{
    poll_fn(|cx| {
        for (index, attempt) in running.iter_mut().enumerate() {
            if let Poll::Ready(result) = attempt.future.as_mut().poll(cx) {
                return Poll::Ready((index, result));
            }
        }
        Poll::Pending
    })
    .await
}

fn addresses_of<A, F>(attempts: Vec<Attempt<A, F>>) -> Vec<A> {
    let addresses = attempts.into_iter().map(|attempt| attempt.address);
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::error::{ErrorKind, Outcome};

    /// What happens at an address of the tests.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Address {
        Responds(Duration),
        Fails(Duration),
        Silent,
    }
    use Address::{Fails, Responds, Silent};

    const TIMEOUT: Duration = Duration::from_secs(2);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    async fn attempt(address: Address) -> Result<(), Error> {
        match address {
            Responds(delay) => {
                sleep(delay).await;
                Ok(())
            }
            Fails(delay) => {
                sleep(delay).await;
                Err(Error::new(
                    ErrorKind::Unavailable,
                    Outcome::NotSent,
                    "refused",
                ))
            }
            Silent => std::future::pending().await,
        }
    }

    /// Returns the result of a race and its duration.
    async fn race(addresses: &[Address]) -> (AddressRace<Address, ()>, Duration) {
        let started = Instant::now();
        let race = race_addresses(addresses.to_vec(), started + TIMEOUT, attempt).await;
        (race, started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_delays_the_next_briefly() {
        let (race, duration) = race(&[Silent, Responds(ms(10))]).await;
        assert_eq!(race.winner, Some((Responds(ms(10)), ())));
        assert_eq!(race.silent, [Silent]);
        assert!(duration <= MAX_DELAY + ms(20), "{duration:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_address_does_not_delay_the_next() {
        let (race, duration) = race(&[Fails(ms(1)), Responds(ms(10))]).await;
        assert!(race.winner.is_some());
        assert_eq!(race.failed.len(), 1);
        assert!(race.silent.is_empty());
        assert!(duration <= ms(20), "{duration:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_first_address_wins_against_silent_ones() {
        let (race, duration) = race(&[Responds(ms(1400)), Silent, Silent]).await;
        assert_eq!(race.winner, Some((Responds(ms(1400)), ())));
        assert!(race.silent.is_empty(), "those were started later");
        assert!(duration <= ms(1420), "{duration:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn every_address_is_tried_before_the_deadline() {
        let mut addresses = vec![Silent; 40];
        addresses.push(Responds(ms(10)));
        let (race, _) = race(&addresses).await;
        assert!(race.winner.is_some());
        assert_eq!(race.silent.len(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn race_without_success_ends_at_the_deadline() {
        let (silent, duration) = race(&[Silent, Fails(ms(10))]).await;
        assert!(silent.winner.is_none());
        assert_eq!((silent.silent.len(), silent.failed.len()), (1, 1));
        assert!(
            (TIMEOUT..TIMEOUT + ms(20)).contains(&duration),
            "{duration:?}"
        );
        let (failed, duration) = race(&[Fails(ms(10)), Fails(ms(10))]).await;
        assert_eq!(failed.failed.len(), 2);
        assert!(duration <= ms(30), "{duration:?}");
    }
}
