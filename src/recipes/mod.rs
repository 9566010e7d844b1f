//! Sessions, locks, semaphores, barriers, elections, singletons, service registration and discovery, queues, counters,
//! transactions.
//!
//! | recipe | provides | start with |
//! |---|---|---|
//! | [`session`] | a lease that is kept alive, and keys that are deleted with it | [`Client::session`](crate::Client::session) |
//! | [`mutex`] | a lock that one session in the cluster holds at a time | [`Client::mutex`](crate::Client::mutex), [`Session::mutex`](session::Session::mutex) |
//! | [`rw_lock`] | a lock that many readers or one writer hold at a time | [`Client::rw_lock`](crate::Client::rw_lock), [`Session::rw_lock`](session::Session::rw_lock) |
//! | [`semaphore`] | a number of permits that are held at the same time | [`Client::semaphore`](crate::Client::semaphore), [`Session::semaphore`](session::Session::semaphore) |
//! | [`barrier`] | everybody waits until it is released | [`Client::barrier`](crate::Client::barrier), [`Session::barrier`](session::Session::barrier) |
//! | [`double_barrier`] | participants begin together and end together | [`Client::double_barrier`](crate::Client::double_barrier), [`Session::double_barrier`](session::Session::double_barrier) |
//! | [`election`] | one leader at a time, visible to all clients | [`Client::election`](crate::Client::election), [`Session::election`](session::Session::election) |
//! | [`singleton`] | an actor that runs on one node at a time | [`Client::singleton`](crate::Client::singleton) |
//! | [`discovery`] | the instances of a service: registration and a live list | [`Client::register`](crate::Client::register), [`Client::discover`](crate::Client::discover) |
//! | [`queue`] | items that are taken by one taker at a time and completed once | [`Client::queue`](crate::Client::queue) |
//! | [`mod@counter`] | a number without lost or doubled increments | [`Client::counter`](crate::Client::counter) |
//! | [`stm`] | a closure whose writes are applied together or not at all | [`Client::stm`](crate::Client::stm) |
//!
//! The recipes send every request to etcd through the public API of this crate. Their background work runs on the
//! client's thread, so a lock is released and a key is put again even while the application blocks its own threads.
//! Keys and values have the layout of the Go client: Go programs and `etcdctl` can take part. (It has no semaphore.)
//!
//! # Common ideas
//! - **Ownership**: a lock or a leadership is a key in etcd, bound to the lease of a session. The session owns the lock
//!   while its key is the oldest one under the lock's name. [`Ownership`](mutex::Ownership) is the view that the work
//!   under the lock gets: its fencing token, the remaining time, and a future that resolves when it is lost.
//! - **Fencing token**: the create revision of that key. Each later owner has a larger token, so a store that
//!   stores the largest token it has received can reject writes of an earlier owner.
//! - **Subscription**: `deliver_to(recipient)` sends the events of a recipe to an actor. It returns a handle:
//!   dropping a [`Subscription`](election::Subscription) stops the delivery, dropping a
//!   [`ClaimHandle`](mutex::ClaimHandle) releases the lock or the leadership.
//!
//! # Files
//! | recipe | file | content |
//! |---|---|---|
//! | session | `session/session_builder` | opens a session |
//! | | `session/session_handle` | the public handle |
//! | | `session/session_state` | state shared by the handle, the actor and the locks |
//! | | `session/actor`, `messages` | the actor that follows the lease, and its messages |
//! | | `session/healing` | replaces a lost lease |
//! | | `session/key_restoration` | puts the keys again, in batches |
//! | | `session/own_leases` | the latest leases, by which a session recognizes its keys |
//! | | `session/session_lease` | the status of a lease, for locks and elections |
//! | | `session/local_mutexes` | orders the tasks of one session that wait for the same lock, and numbers its claims |
//! | | `session/late_keys` | the keys that a request without a response may still create |
//! | mutex, rw_lock, semaphore, double_barrier, election | `lock_queue/mod` | the queue in etcd behind locks and elections: joins it |
//! | | `lock_queue/queue_builder` | opens a queue with a session of its own |
//! | | `lock_queue/queue_rule` | which keys are in a queue, and which older keys an entry waits for |
//! | | `lock_queue/create_entry` | creates the session's key |
//! | | `lock_queue/queue_entry` | waits until no older key blocks the entry |
//! | | `lock_queue/contenders` | reports keys of no contender, and names that are not valid |
//! | | `lock_queue/remove_entry` | deletes the key |
//! | | `lock_queue/late_key_cleanup` | deletes keys that are created late |
//! | | `lock_queue/ownership` | the view of the owner |
//! | | `lock_queue/claim_handle` | waits and holds on behalf of an actor |
//! | | `lock_queue/guard_types` | defines a request for a lock, and its guard |
//! | | `lock_queue/scope` | waits with a timeout, runs work under a guard |
//! | mutex | `mutex/mod`, `acquire_lock` | the lock, a request for it, the lock while it is held |
//! | | `mutex/mutex_builder` | opens a lock with a session of its own |
//! | rw_lock | `rw_lock/mod`, `read_lock`, `write_lock` | the lock, its requests and guards for readers and writers |
//! | | `rw_lock/rw_lock_builder` | opens a lock with a session of its own |
//! | semaphore | `semaphore/mod`, `permit` | the semaphore, a request for a permit, the permit while it is held |
//! | | `semaphore/semaphore_builder` | opens a semaphore with a session of its own |
//! | barrier | `barrier/mod`, `wait_barrier` | holds and releases the barrier, waits for its release |
//! | | `barrier/barrier_hold` | creates the key so that no late request can |
//! | double_barrier | `double_barrier/mod`, `enter`, `leave` | the barrier, a request to enter, a participant inside |
//! | | `double_barrier/round` | decides in which state a round is |
//! | election | `election/mod`, `campaign`, `leadership` | the election, a campaign, an election that was won |
//! | | `election/election_builder` | opens an election with a session of its own |
//! | | `election/leader_monitor` | whether this candidate leads, and is healthy enough to |
//! | | `election/leaders` | observes the leaders |
//! | | `election/candidate_list` | all candidates, and the leader among them |
//! | singleton | `singleton/mod`, `singleton_handle` | the builder and the public handle |
//! | | `singleton/singleton_state` | the state on one node |
//! | | `singleton/campaign_loop` | campaigns, runs the actor, stops it in time |
//! | | `singleton/run_times` | decides when the actor may start |
//! | | `singleton/time_limited_actor` | an actor that stops before its time is over |
//! | discovery | `discovery/register`, `registration` | a request to register, and the public handle |
//! | | `discovery/registration_task` | the task that keeps an instance listed |
//! | | `discovery/instance_key` | reads and writes the key of an instance |
//! | | `discovery/discover`, `live_instances` | a request for the instances, and the live list |
//! | | `discovery/instance`, `instance_list` | the encoding of an instance, and differences between lists |
//! | queue | `queue/queue_handle`, `queue_item` | a queue with its options, an item that was taken |
//! | | `queue/queue_keys` | the keys of a queue |
//! | | `queue/push_item` | a request to push an item |
//! | | `queue/next_item`, `take_item` | finds the next item, and waits for one in a line |
//! | | `queue/claim_item` | marks an item as taken |
//! | | `queue/item_hold` | completes an item, or ends its visibility time-out |
//! | | `queue/item_delivery` | takes items on behalf of an actor |
//! | counter | `counter` | the counter and its requests |
//! | stm | `stm/stm_builder` | options, and the loop over attempts |
//! | | `stm/transaction` | the handle of an attempt |
//! | | `stm/read_set`, `write_set`, `commit` | what an attempt has read and writes, and its commit |
//! | all | `ownership_lost` | why a lock or a leadership was lost |
//! | | `txn_read` | reads the key that a transaction returned |

pub mod barrier;
pub mod counter;
pub mod discovery;
pub mod double_barrier;
pub mod election;
mod lock_queue;
pub mod mutex;
mod ownership_lost;
pub mod queue;
pub mod rw_lock;
pub mod semaphore;
pub mod session;
pub mod singleton;
pub mod stm;
mod txn_read;
