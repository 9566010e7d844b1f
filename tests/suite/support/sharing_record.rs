//! A record of who held a shared lock and when: readers and writers, or holders of permits.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    Reader,
    Writer,
    Permit,
}

#[derive(Clone, Default)]
pub struct SharingRecord(Arc<Mutex<Holdings>>);

#[derive(Default)]
struct Holdings {
    /// Start and end of each period.
    periods: Vec<(Instant, Instant, Share)>,
    /// Number of reads under a lock that was held.
    reads: usize,
}

/// Records a period, which ends when this value is dropped.
pub struct HoldingPeriod {
    share: Share,
    start: Instant,
    record: SharingRecord,
}

impl SharingRecord {
    pub fn start(&self, share: Share) -> HoldingPeriod {
        HoldingPeriod {
            share,
            start: Instant::now(),
            record: self.clone(),
        }
    }

    pub fn add_reads(&self, reads: usize) {
        self.0.lock().unwrap().reads += reads;
    }

    /// Fails if a writer held the lock together with anybody else, or if readers never shared it.
    pub fn check_writers_alone(&self) {
        let mut readers = 0;
        let mut writers = 0;
        let mut most_readers = 0;
        self.replay(|share, begins| {
            let holders = if share == Share::Writer {
                &mut writers
            } else {
                &mut readers
            };
            *holders = if begins { *holders + 1 } else { *holders - 1 };
            most_readers = most_readers.max(readers);
            assert!(
                writers == 0 || (writers == 1 && readers == 0),
                "{writers} writers and {readers} readers held the lock at the same time"
            );
        });
        assert!(most_readers > 1, "readers never shared the lock");
    }

    /// Fails if more holders than permits worked at the same time, or if the permits were never held by all.
    pub fn check_permits(&self, permits: usize) {
        let (mut holders, mut most) = (0_usize, 0);
        self.replay(|_, begins| {
            holders = if begins { holders + 1 } else { holders - 1 };
            most = most.max(holders);
        });
        assert_eq!(most, permits, "number of permits held at the same time");
    }

    /// Calls `step` for every begin and end of a period, in the order of time.
    fn replay(&self, mut step: impl FnMut(Share, bool)) {
        let holdings = self.0.lock().unwrap();
        println!(
            "{} periods, {} reads under a lock",
            holdings.periods.len(),
            holdings.reads
        );
        assert!(holdings.reads > 0, "nobody has read");
        // Ends come before begins at the same time.
        let mut steps: Vec<_> = holdings
            .periods
            .iter()
            .flat_map(|(start, end, share)| [(*start, true, *share), (*end, false, *share)])
            .collect();
        steps.sort_unstable();
        for (_, begins, share) in steps {
            step(share, begins);
        }
    }
}

impl Drop for HoldingPeriod {
    fn drop(&mut self) {
        let period = (self.start, Instant::now(), self.share);
        self.record.0.lock().unwrap().periods.push(period);
    }
}

#[test]
#[should_panic(expected = "1 writers and 1 readers")]
fn record_finds_reader_beside_writer() {
    let record = SharingRecord::default();
    record.add_reads(1);
    let reader = record.start(Share::Reader);
    let writer = record.start(Share::Writer);
    drop(reader);
    drop(writer);
    record.check_writers_alone();
}
