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
pub(super) struct AddressResults<A, T> {
    /// The first success and its address.
    pub(super) success: Option<(A, T)>,
    /// Addresses whose attempts failed before the first success, with their errors.
    pub(super) failed: Vec<(A, Error)>,
    /// Addresses without a result: at the deadline, or when an attempt that was started later succeeded.
    pub(super) silent: Vec<A>,
}

struct AddressAttempt<A, F> {
    address: A,
    future: Pin<Box<F>>,
}

/// Tries the addresses in order. Starts the next attempt when one fails, or after a delay that leaves time for all
/// addresses before the deadline. The first success ends the other attempts.
pub(super) async fn try_addresses<A, T, F>(
    addresses: Vec<A>,
    deadline: Instant,
    attempt: impl Fn(A) -> F,
) -> AddressResults<A, T>
where
    A: Clone,
    F: Future<Output = Result<T, Error>>,
{
    let delay = next_address_delay(
        deadline.saturating_duration_since(Instant::now()),
        addresses.len(),
    );
    let mut waiting = addresses.into_iter();
    let mut running: Vec<AddressAttempt<A, F>> = Vec::new();
    let mut failed = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            running.push(AddressAttempt {
                address: address.clone(),
                future: Box::pin(attempt(address)),
            });
        }
        if running.is_empty() {
            return AddressResults {
                success: None,
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
                    Ok(value) => {
                        running.truncate(index);
                        return AddressResults {
                            success: Some((address, value)),
                            failed,
                            silent: addresses_of(running),
                        };
                    }
                    Err(error) => failed.push((address, error)),
                }
            }
            () = sleep_until(wake_at) => {
                if wake_at >= deadline {
                    return AddressResults { success: None, failed, silent: addresses_of(running) };
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
async fn next_result<A, T, F>(running: &mut [AddressAttempt<A, F>]) -> (usize, Result<T, Error>)
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

fn addresses_of<A, F>(attempts: Vec<AddressAttempt<A, F>>) -> Vec<A> {
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

    /// Returns the results of the attempts and their duration.
    async fn try_all(addresses: &[Address]) -> (AddressResults<Address, ()>, Duration) {
        let started = Instant::now();
        let results = try_addresses(addresses.to_vec(), started + TIMEOUT, attempt).await;
        (results, started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_delays_the_next_briefly() {
        let (results, duration) = try_all(&[Silent, Responds(ms(10))]).await;
        assert_eq!(results.success, Some((Responds(ms(10)), ())));
        assert_eq!(results.silent, [Silent]);
        assert!(duration <= MAX_DELAY + ms(20), "{duration:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_address_does_not_delay_the_next() {
        let (results, duration) = try_all(&[Fails(ms(1)), Responds(ms(10))]).await;
        assert!(results.success.is_some());
        assert_eq!(results.failed.len(), 1);
        assert!(results.silent.is_empty());
        assert!(duration <= ms(20), "{duration:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_first_address_wins_against_silent_ones() {
        let (results, duration) = try_all(&[Responds(ms(1400)), Silent, Silent]).await;
        assert_eq!(results.success, Some((Responds(ms(1400)), ())));
        assert!(results.silent.is_empty(), "those were started later");
        assert!(duration <= ms(1420), "{duration:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn every_address_is_tried_before_the_deadline() {
        let mut addresses = vec![Silent; 40];
        addresses.push(Responds(ms(10)));
        let (results, _) = try_all(&addresses).await;
        assert!(results.success.is_some());
        assert_eq!(results.silent.len(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_without_success_end_at_deadline() {
        let (silent, duration) = try_all(&[Silent, Fails(ms(10))]).await;
        assert!(silent.success.is_none());
        assert_eq!((silent.silent.len(), silent.failed.len()), (1, 1));
        assert!(
            (TIMEOUT..TIMEOUT + ms(20)).contains(&duration),
            "{duration:?}"
        );
        let (failed, duration) = try_all(&[Fails(ms(10)), Fails(ms(10))]).await;
        assert_eq!(failed.failed.len(), 2);
        assert!(duration <= ms(30), "{duration:?}");
    }
}
