//! What the requests for typed values have in common.

/// Declares a request: its struct with the methods `on` and `timeout`, awaiting it with a client, and sending it to the
/// actor `Etcd` without one. `$perform(request, prefix_len, &client, timeout)` sends it and decodes the response.
macro_rules! typed_request {
    ($(#[$doc:meta])* $request:ident($inner:ty) -> $output:ty, $perform:ident) => {
        $(#[$doc])*
        #[must_use = "a request is sent when it is awaited"]
        pub struct $request<T, C, H = ()> {
            /// An error is returned when the request is awaited.
            inner: $crate::error::Result<$inner>,
            prefix_len: usize,
            timeout: Option<std::time::Duration>,
            client: H,
            types: std::marker::PhantomData<fn() -> (T, C)>,
        }

        impl<T, C> $request<T, C> {
            /// Binds the request to a client: awaiting it sends it.
            pub fn on(self, client: &$crate::client::Client) -> $request<T, C, $crate::client::Client> {
                $request {
                    inner: self.inner,
                    prefix_len: self.prefix_len,
                    timeout: self.timeout,
                    client: client.clone(),
                    types: std::marker::PhantomData,
                }
            }
        }

        impl<T, C, H> $request<T, C, H> {
            /// Longest time this request may take, retries included. Default: the client's `request_timeout`.
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.timeout = Some(timeout);
                self
            }

            #[allow(dead_code, reason = "not every request has options")]
            fn map_inner(mut self, change: impl FnOnce($inner) -> $inner) -> Self {
                self.inner = self.inner.map(change);
                self
            }

            fn of(prefix: &bytes::Bytes, inner: $crate::error::Result<$inner>, client: H) -> Self {
                Self {
                    inner,
                    prefix_len: prefix.len(),
                    timeout: None,
                    client,
                    types: std::marker::PhantomData,
                }
            }
        }

        impl<T, C> std::future::IntoFuture for $request<T, C, $crate::client::Client>
        where
            T: Send + 'static,
            C: $crate::layers::codec::Codec<T>,
        {
            type Output = $crate::error::Result<$output>;
            type IntoFuture = $crate::request::ResponseFuture<$output>;

            fn into_future(self) -> Self::IntoFuture {
                let timeout = self.timeout.unwrap_or(self.client.request_timeout());
                let (inner, prefix_len, client) = (self.inner, self.prefix_len, self.client);
                Box::pin(async move { $perform::<T, C>(inner?, prefix_len, &client, timeout).await })
            }
        }

        impl<T: Send + 'static, C: 'static> actix::Message for $request<T, C> {
            type Result = $crate::error::Result<$output>;
        }

        impl<T, C> $crate::request::EtcdRequest<$crate::client::Client> for $request<T, C>
        where
            T: Send + 'static,
            C: $crate::layers::codec::Codec<T>,
        {
            type Response = $output;

            fn name(&self) -> &'static str {
                stringify!($request)
            }

            fn send_with(
                self,
                client: &$crate::client::Client,
            ) -> $crate::request::ResponseFuture<$output> {
                std::future::IntoFuture::into_future(self.on(client))
            }
        }

        impl<T, C, H: Clone> Clone for $request<T, C, H> {
            fn clone(&self) -> Self {
                Self {
                    inner: self.inner.clone(),
                    prefix_len: self.prefix_len,
                    timeout: self.timeout,
                    client: self.client.clone(),
                    types: std::marker::PhantomData,
                }
            }
        }

        impl<T, C, H> std::fmt::Debug for $request<T, C, H> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($request))
                    .field("inner", &self.inner)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use typed_request;
