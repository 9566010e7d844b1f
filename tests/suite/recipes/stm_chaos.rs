//! A bank whose transfers are transactions, while members, links and the leader fail at random.
//!
//! Each transfer also writes an entry of a ledger. The accounts must equal the sum of the entries at every revision, so
//! a transfer that is applied in part or twice is detected.
//!
//! `CHAOS_SECS` sets the duration and `CHAOS_SEED` the seed, which the test prints.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use actix_etcd::{Client, Error, ErrorKind, Outcome, recipes::stm::Isolation};
use bytes::Bytes;
use testbed::{Chaos, ChaosKind, Cluster};

const WORKERS: u64 = 16;
const ACCOUNTS: u64 = 8;
const START: i64 = 100;

fn number(value: Option<&Bytes>) -> i64 {
    value.map_or(START, |value| {
        String::from_utf8_lossy(value).parse().unwrap()
    })
}

fn account(n: u64) -> String {
    format!("bank/account/{n}")
}

/// The transfers of one worker, by the keys of their entries.
#[derive(Default)]
struct Transfers {
    applied: Vec<String>,
    not_applied: Vec<String>,
    unknown: usize,
    conflicts: u64,
}

async fn transfer(etcd: &Client, entry: &str, conflicts: &AtomicU64) -> Result<(), Error> {
    let isolations = [
        Isolation::SerializableSnapshot,
        Isolation::Serializable,
        Isolation::RepeatableReads,
    ];
    let stm = etcd
        .stm()
        .isolation(isolations[fastrand::usize(..isolations.len())]);
    let from = fastrand::u64(..ACCOUNTS);
    let to = (from + fastrand::u64(1..ACCOUNTS)) % ACCOUNTS;
    let amount = fastrand::i64(1..10);
    stm.run(async |tx| {
        conflicts.fetch_add(u64::from(tx.attempt() > 1), SeqCst);
        let (from_key, to_key) = (account(from), account(to));
        let from_balance = number(tx.get(&from_key).await?.as_ref());
        let to_balance = number(tx.get(&to_key).await?.as_ref());
        tx.put(from_key, (from_balance - amount).to_string());
        tx.put(to_key, (to_balance + amount).to_string());
        tx.put(entry, format!("{from} {to} {amount}"));
        Ok(())
    })
    .await
}

async fn work(etcd: Client, worker: u64, stop: Arc<AtomicBool>) -> Transfers {
    let mut transfers = Transfers::default();
    let conflicts = AtomicU64::new(0);
    for n in 0.. {
        if stop.load(SeqCst) {
            break;
        }
        let entry = format!("bank/ledger/{worker:02}/{n:05}");
        match transfer(&etcd, &entry, &conflicts).await {
            Ok(()) => transfers.applied.push(entry),
            Err(error) if error.outcome() == Outcome::Unknown => transfers.unknown += 1,
            Err(error) => {
                let expected = error.kind() == ErrorKind::Conflict || error.is_transient();
                assert!(expected, "{error:?}");
                transfers.not_applied.push(entry);
            }
        }
    }
    transfers.conflicts = conflicts.into_inner();
    transfers
}

/// Checks that the accounts equal the sum of the ledger's entries, all read at one revision. Returns the entries.
async fn check_books(etcd: &Client) -> Result<Vec<String>, Error> {
    let books = etcd.get("bank/").prefix().await?;
    let books: BTreeMap<String, &Bytes> = books
        .kvs
        .iter()
        .map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), &kv.value))
        .collect();
    let balances: Vec<i64> = (0..ACCOUNTS)
        .map(|n| number(books.get(&account(n)).copied()))
        .collect();
    assert_eq!(
        balances.iter().sum::<i64>(),
        START * i64::try_from(ACCOUNTS).unwrap()
    );
    let mut expected = [START; 8];
    let entries = books
        .iter()
        .filter(|(key, _)| key.starts_with("bank/ledger/"));
    let mut keys = Vec::new();
    for (key, entry) in entries {
        let entry = String::from_utf8_lossy(entry).into_owned();
        let fields: Vec<&str> = entry.split(' ').collect();
        let amount: i64 = fields[2].parse().unwrap();
        expected[fields[0].parse::<usize>().unwrap()] -= amount;
        expected[fields[1].parse::<usize>().unwrap()] += amount;
        keys.push(key.clone());
    }
    assert_eq!(
        balances, expected,
        "a transfer was applied in part or twice"
    );
    Ok(keys)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bank_keeps_its_sum_under_random_faults() {
    let cluster = Cluster::start(3).await;
    let etcd = Client::connect(cluster.endpoints()).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| tokio::spawn(work(etcd.clone(), worker, stop.clone())))
        .collect();
    let audit = {
        let (etcd, stop) = (etcd.clone(), stop.clone());
        tokio::spawn(async move {
            let mut audits = 0;
            while !stop.load(SeqCst) {
                audits += u64::from(check_books(&etcd).await.is_ok());
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            audits
        })
    };
    let faults = Chaos::from_env("stm").run(&cluster, &ChaosKind::ALL).await;
    stop.store(true, SeqCst);
    let mut all = Transfers::default();
    for worker in workers {
        let transfers = worker.await.unwrap();
        all.applied.extend(transfers.applied);
        all.not_applied.extend(transfers.not_applied);
        all.unknown += transfers.unknown;
        all.conflicts += transfers.conflicts;
    }
    let entries = check_books(&etcd).await.unwrap();
    println!(
        "{} transfers, {} not applied, {} unknown, {} conflicts, {} audits, {} faults",
        all.applied.len(),
        all.not_applied.len(),
        all.unknown,
        all.conflicts,
        audit.await.unwrap(),
        faults.len()
    );
    for entry in &all.applied {
        assert!(
            entries.binary_search(entry).is_ok(),
            "{entry} was acknowledged and is lost"
        );
    }
    for entry in &all.not_applied {
        assert!(
            entries.binary_search(entry).is_err(),
            "{entry} failed and was applied"
        );
    }
    assert!(all.applied.len() > 50, "the bank was stuck");
}
