//! Defines the guard of a queue and the request for it: an ownership that is released when the guard is dropped.

/// Defines a guard type with a method that releases it, and a request type that waits for the guard or delivers its
/// events to an actor.
macro_rules! guard_types {
    (
        $(#[$guard_doc:meta])*
        guard $guard:ident { $(#[$release_doc:meta])* $release:ident }
        $(#[$request_doc:meta])*
        request $request:ident { $(#[$deliver_doc:meta])* }
    ) => {
        $(#[$guard_doc])*
        pub struct $guard {
            entry: $crate::recipes::lock_queue::QueueEntry,
        }

        impl $guard {
            /// Fails if the client shuts down.
            pub(super) fn new(
                entry: $crate::recipes::lock_queue::QueueEntry,
            ) -> $crate::error::Result<Self> {
                entry.hold()?;
                Ok(Self { entry })
            }

            $(#[$release_doc])*
            pub async fn $release(self) -> $crate::error::Result<()> {
                self.entry.release().await
            }
        }

        impl $crate::recipes::lock_queue::ClaimGuard for $guard {
            async fn release(self) -> $crate::error::Result<()> {
                self.entry.release().await
            }
        }

        impl $crate::layers::exactly_once::Fence for $guard {
            fn fence_conditions(&self) -> Vec<$crate::kv::Compare> {
                (**self).fence_conditions()
            }

            fn fence_key(&self) -> bytes::Bytes {
                (**self).fence_key()
            }
        }

        impl std::ops::Deref for $guard {
            type Target = $crate::recipes::lock_queue::Ownership;

            fn deref(&self) -> &Self::Target {
                &self.entry.ownership
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_tuple(stringify!($guard)).field(&**self).finish()
            }
        }

        $(#[$request_doc])*
        #[derive(Clone)]
        pub struct $request {
            queue: $crate::recipes::lock_queue::LockQueue,
        }

        impl $request {
            pub(super) fn new(queue: $crate::recipes::lock_queue::LockQueue) -> Self {
                Self { queue }
            }

            $(#[$deliver_doc])*
            pub fn deliver_to(
                self,
                recipient: actix::Recipient<$crate::recipes::mutex::LockEvent>,
            ) -> $crate::recipes::lock_queue::ClaimHandle {
                let client = self.queue.client.clone();
                let queue = self.queue.for_background();
                let acquire = async move |cancel: &mut tokio::sync::oneshot::Receiver<()>| {
                    let entry = queue.join_and_wait(bytes::Bytes::new(), cancel).await?;
                    entry.map($guard::new).transpose()
                };
                $crate::recipes::lock_queue::claim(&client, acquire, recipient)
            }
        }

        impl std::future::IntoFuture for $request {
            type Output = $crate::error::Result<$guard>;
            type IntoFuture = $crate::request::ResponseFuture<$guard>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(async move { $guard::new(self.queue.acquire(bytes::Bytes::new()).await?) })
            }
        }

        impl std::fmt::Debug for $request {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($request))
                    .field("prefix", &self.queue.keys.prefix)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(in crate::recipes) use guard_types;
