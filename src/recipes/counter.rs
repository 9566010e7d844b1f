//! A number that any number of clients increment, without lost and without doubled increments.
//!
//! ```no_run
//! # async fn example(etcd: &actix_etcd::Client) -> actix_etcd::Result<()> {
//! let visits = etcd.counter("stats/visits");
//! let now = visits.add(1).await?;
//! println!("visit {now}, at least {} in total", visits.get().await?);
//! # Ok(())
//! # }
//! ```
//!
//! The key is the name of the counter, its value is the number in decimal digits, so `etcdctl` and other clients can read
//! it. A counter without a key is 0.
//!
//! Each change is applied [exactly once](crate::layers::exactly_once), also if its response is lost. So if a counter is
//! only changed by adding positive numbers, no value is returned to two callers. Changes of one counter exclude each other: a change that finds a newer value starts
//! again after a growing delay, as [`Client::modify`] does. So a counter serves some hundred changes per second; count
//! more frequent events in memory, and add their sum.
//!
//! An actor changes a counter by messages: `etcd.send(counter("stats/visits").add(1))`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;

use crate::{
    client::Client,
    error::{Error, Result},
    kv::get,
    layers::{
        codec::{self, Utf8},
        conditional_write::{Change, modify},
        exactly_once::MarkingClient,
    },
    request::{IntoBytes, macros::request},
};

/// A number in etcd. See [`Client::counter`].
#[derive(Debug, Clone)]
#[must_use = "a counter does nothing until its methods are called"]
pub struct Counter<C = ()> {
    key: Bytes,
    client: C,
}

/// Returns the counter with this name, without a client: its requests are messages to the actor
/// [`Etcd`](crate::Etcd).
pub fn counter(name: impl IntoBytes) -> Counter {
    Counter {
        key: name.into_bytes(),
        client: (),
    }
}

impl Client {
    /// Returns the counter with this name. Sends nothing. See [`counter`](mod@crate::recipes::counter).
    pub fn counter(&self, name: impl IntoBytes) -> Counter<Self> {
        Counter {
            key: name.into_bytes(),
            client: self.clone(),
        }
    }
}

impl<C: Clone> Counter<C> {
    /// Adds a number, which may be negative, and returns the new value. Fails
    /// - with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the result is not in the range of
    ///   `i64`,
    /// - with [`ErrorKind::CodecFailed`](crate::ErrorKind::CodecFailed) if the value of the key is not a number,
    /// - with [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if others changed the counter before each attempt.
    /// - with [`ErrorKind::DeadlineExceeded`](crate::ErrorKind::DeadlineExceeded) if they did until the deadline.
    ///
    /// Then the counter is unchanged. It is also unchanged after any other error, unless its
    /// [outcome](crate::Error::outcome) is unknown.
    pub fn add(&self, number: i64) -> CounterRequest<C> {
        self.request(CounterOperation::Add(number))
    }

    /// Replaces the value, also one that is not a number, and returns the new one. A lease of the key is kept. Fails as
    /// [`add`](Self::add) does, but accepts each number and replaces each value.
    pub fn set(&self, number: i64) -> CounterRequest<C> {
        self.request(CounterOperation::Set(number))
    }

    /// Returns the value; 0 if the key does not exist. Fails with
    /// [`ErrorKind::CodecFailed`](crate::ErrorKind::CodecFailed) if the value is not a number.
    pub fn get(&self) -> CounterRequest<C> {
        self.request(CounterOperation::Get)
    }

    fn request(&self, operation: CounterOperation) -> CounterRequest<C> {
        CounterRequest {
            key: self.key.clone(),
            operation,
            timeout: None,
            client: self.client.clone(),
        }
    }
}

/// A read or a change of a [`Counter`]. Awaiting it returns the value of the counter.
#[derive(Debug, Clone)]
#[must_use = "a request is sent when it is awaited"]
pub struct CounterRequest<C = ()> {
    key: Bytes,
    operation: CounterOperation,
    timeout: Option<Duration>,
    client: C,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CounterOperation {
    Add(i64),
    Set(i64),
    Get,
}

request!(CounterRequest { key, operation } -> i64, MarkingClient);

impl CounterRequest {
    async fn perform(self, client: &impl MarkingClient, timeout: Duration) -> Result<i64> {
        let Self { key, operation, .. } = self;
        if operation == CounterOperation::Get {
            let found = get(&key).timeout(timeout).on(client).await?;
            return decode(&key, found.value());
        }
        let result = Arc::new(AtomicI64::new(0));
        let written = result.clone();
        let change = modify(key.clone(), move |current| {
            let after = changed(&key, current.map(|kv| &kv.value), operation)?;
            written.store(after, Relaxed);
            Ok::<_, Error>(Change::Put(after.to_string().into()))
        });
        change.timeout(timeout).on(client).await?;
        Ok(result.load(Relaxed))
    }
}

/// Returns the value after a change.
fn changed(key: &Bytes, value: Option<&Bytes>, operation: CounterOperation) -> Result<i64> {
    let number = match operation {
        CounterOperation::Set(number) => return Ok(number),
        CounterOperation::Get => 0,
        CounterOperation::Add(number) => number,
    };
    let before = decode(key, value)?;
    before.checked_add(number).ok_or_else(|| {
        Error::invalid(format!(
            "the counter `{}` is {before}; adding {number} exceeds the range of 64-bit numbers",
            key.escape_ascii()
        ))
    })
}

fn decode(key: &Bytes, value: Option<&Bytes>) -> Result<i64> {
    value.map_or(Ok(0), |value| codec::decode::<i64, Utf8>(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn add(value: &'static str, number: i64) -> Result<i64, ErrorKind> {
        let value = Bytes::from(value);
        let operation = CounterOperation::Add(number);
        changed(&Bytes::from("n"), Some(&value), operation).map_err(|error| error.kind())
    }

    #[test]
    fn sums_stay_in_the_range_of_numbers() {
        assert_eq!(add("41", 1), Ok(42));
        assert_eq!(add("-1", -1), Ok(-2));
        assert_eq!(add("9223372036854775806", 1), Ok(i64::MAX));
        assert_eq!(
            add("9223372036854775807", 1),
            Err(ErrorKind::InvalidArgument)
        );
        assert_eq!(
            add("-9223372036854775808", -1),
            Err(ErrorKind::InvalidArgument)
        );
    }

    #[test]
    fn values_that_are_not_numbers_are_refused() {
        for value in ["", "x", "1.5", " 1", "9223372036854775808"] {
            assert_eq!(add(value, 1), Err(ErrorKind::CodecFailed), "{value}");
        }
    }
}
