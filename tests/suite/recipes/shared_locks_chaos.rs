//! Readers and writers, and holders of permits, while members, links and proxies fail at random: no writer with anybody
//! else, never more holders than permits, and no key left behind. Checked by the clock and by fencing tokens.
//!
//! `CHAOS_SECS` sets the duration, `CHAOS_SEED` the seed, which the test prints.

use actix_etcd::{
    Result,
    kv::{OpResponse, get},
    recipes::{mutex::Ownership, session::Session},
};
use testbed::PathKind;

use crate::support::{
    lock_competition::{Holder, LockCompetition, NAME},
    sharing_record::{Share, SharingRecord},
};

/// Number of permits, one less than there are nodes.
const PERMITS: u32 = 2;
const MUTEX: &str = "m";

/// Reads and writes in turns. The work of the competition is that of a writer.
#[derive(Clone, Default)]
struct ReaderAndWriter {
    record: SharingRecord,
}

impl ReaderAndWriter {
    /// Reads the counter of the competition twice. A writer in between would change it.
    async fn read(self, held: Ownership) {
        let _period = self.record.start(Share::Reader);
        let mut first = None;
        for _ in 0..4 {
            let Ok(response) = held.txn().then([get("counter")]).await else {
                return;
            };
            if !response.succeeded {
                return;
            }
            let revision = match &response.responses[0] {
                OpResponse::Get(found) => found.first().map_or(0, |kv| kv.mod_revision),
                other => panic!("{other:?}"),
            };
            let first = *first.get_or_insert(revision);
            self.record.add_reads(1);
            assert_eq!(
                revision, first,
                "a writer wrote while a reader had the lock"
            );
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}

impl Holder for ReaderAndWriter {
    async fn hold<F>(
        &self,
        session: &Session,
        _: usize,
        work: impl FnOnce(Ownership) -> F + Send,
    ) -> Result<()>
    where
        F: Future<Output = ()> + Send,
    {
        let lock = session.rw_lock(NAME);
        let (reader, record) = (self.clone(), self.record.clone());
        let (first, second) = tokio::join!(
            lock.read_scope(|held| self.clone().read(held)),
            lock.read_scope(|held| reader.read(held)),
        );
        first.and(second)?;
        lock.write_scope(|held| async move {
            let _period = record.start(Share::Writer);
            work(held).await;
        })
        .await
    }
}

async fn check_rw_lock(path: PathKind) {
    let holder = ReaderAndWriter::default();
    let record = holder.record.clone();
    LockCompetition::run("read-write lock", path, holder).await;
    record.check_writers_alone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_are_alone_during_random_faults() {
    check_rw_lock(PathKind::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_are_alone_through_tcp_balancer() {
    check_rw_lock(PathKind::TcpBalancer).await;
}

/// Takes a permit, and inside it the mutex that the work of the competition needs.
#[derive(Clone, Default)]
struct PermitHolder {
    record: SharingRecord,
}

impl PermitHolder {
    /// Fails if the permit is valid although enough older ones exist.
    async fn check_token(&self, permit: &Ownership) {
        let older = get(format!("{NAME}/permits/")).prefix().keys_only();
        let older = older.max_create_revision(permit.token() - 1);
        if let Ok(response) = permit.txn().then([older]).await
            && let Some(OpResponse::Get(older)) = response.responses.first()
        {
            let older = older.kvs.len();
            assert!(older < PERMITS as usize, "{older} older permits are held");
            self.record.add_reads(1);
        }
    }
}

impl Holder for PermitHolder {
    async fn hold<F>(
        &self,
        session: &Session,
        _: usize,
        work: impl FnOnce(Ownership) -> F + Send,
    ) -> Result<()>
    where
        F: Future<Output = ()> + Send,
    {
        let semaphore = session.semaphore(NAME, PERMITS);
        let in_turn = semaphore.scope(|permit| async move {
            let _period = self.record.start(Share::Permit);
            self.check_token(&permit).await;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            self.check_token(&permit).await;
        });
        in_turn.await?;
        let worked = semaphore.scope(|permit| async move {
            let _period = self.record.start(Share::Permit);
            let worked = session.mutex(MUTEX).scope(work).await;
            self.check_token(&permit).await;
            worked
        });
        worked.await?
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_never_exceed_permits_during_random_faults() {
    let holder = PermitHolder::default();
    let record = holder.record.clone();
    LockCompetition::run("semaphore", PathKind::Direct, holder).await;
    record.check_permits(PERMITS as usize);
}
