//! Sessions, locks, elections, singletons, service registration and service discovery.
//!
//! | recipe | provides | start with |
//! |---|---|---|
//! | [`session`] | a lease that is kept alive, and keys that are deleted with it | [`Client::session`](crate::Client::session) |
//! | [`mutex`] | a lock that one session in the cluster holds at a time | [`Client::mutex`](crate::Client::mutex), [`Session::mutex`](session::Session::mutex) |
//! | [`election`] | one leader at a time, visible to all clients | [`Client::election`](crate::Client::election), [`Session::election`](session::Session::election) |
//! | [`singleton`] | an actor that runs on one node at a time | [`Client::singleton`](crate::Client::singleton) |
//! | [`discovery`] | the instances of a service: registration and a live list | [`Client::register`](crate::Client::register), [`Client::discover`](crate::Client::discover) |
//!
//! The recipes send every request to etcd through the public API of this crate. Their background work runs on the
//! client's thread, so a lock is released and a key is put again even while the application blocks its own threads.
//! Keys and values have the layout of the Go client: Go programs and `etcdctl` can take part.
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
//! | | `session/local_mutexes` | orders the tasks of one session that wait for the same lock |
//! | | `session/late_keys` | the keys that a request without a response may still create |
//! | mutex, election | `lock_queue/mod` | the queue in etcd behind locks and elections: joins it |
//! | | `lock_queue/queue_builder` | opens a queue with a session of its own |
//! | | `lock_queue/create_entry` | creates the session's key |
//! | | `lock_queue/queue_entry` | waits until the key is the oldest one |
//! | | `lock_queue/contenders` | which keys belong to contenders, and which names are valid |
//! | | `lock_queue/remove_entry` | deletes the key |
//! | | `lock_queue/late_key_cleanup` | deletes keys that are created late |
//! | | `lock_queue/ownership` | the view of the owner |
//! | | `lock_queue/claim_handle` | waits and holds on behalf of an actor |
//! | mutex | `mutex/mod`, `acquire_lock`, `lock_guard` | the lock, a request for it, the lock while it is held |
//! | | `mutex/mutex_builder` | opens a lock with a session of its own |
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
//! | all | `ownership_lost` | why a lock or a leadership was lost |
//! | | `txn_read` | reads the key that a transaction returned |

pub mod discovery;
pub mod election;
mod lock_queue;
pub mod mutex;
mod ownership_lost;
pub mod session;
pub mod singleton;
mod txn_read;

use crate::{client::subscription, layers::read_then_watch};
