//! Macros that give request and response types their common methods.

/// Implements the methods and traits that every request type has: `on(&client)`, `timeout`, `.await`, and
/// `actix::Message`.
///
/// A request type is a struct with the fields `client` and `timeout`, and a method
/// `perform(self, &impl ClientHandle, Duration)`. `$bound` is the trait of the client that `perform` requires.
macro_rules! request {
    ($request:ident { $($field:ident),* } -> $response:ty) => {
        $crate::request::macros::request!(
            $request { $($field),* } -> $response, $crate::request::ClientHandle
        );
    };
    ($request:ident { $($field:ident),* } -> $response:ty, $bound:path) => {
        impl $request {
            /// Binds the request to a client: awaiting it sends it.
            pub fn on<C: $bound>(self, client: &C) -> $request<C> {
                $request {
                    $($field: self.$field,)*
                    timeout: self.timeout,
                    client: client.clone(),
                }
            }
        }

        impl<C> $request<C> {
            /// Longest time this request may take, retries included. Default: the client's `request_timeout`.
            pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
                self.timeout = Some(timeout);
                self
            }

            /// Returns the unbound request, its timeout and its client.
            pub(crate) fn into_parts(self) -> ($request, Option<std::time::Duration>, C) {
                let unbound = $request {
                    $($field: self.$field,)*
                    timeout: self.timeout,
                    client: (),
                };
                (unbound, self.timeout, self.client)
            }
        }

        // The parameter's name is part of rustc's help if an unbound request is awaited: "`IntoFuture` is implemented
        // for `Get<Client>`".
        impl<Client: $bound> std::future::IntoFuture for $request<Client> {
            type Output = $crate::error::Result<$response>;
            type IntoFuture = $crate::request::ResponseFuture<$response>;

            fn into_future(self) -> Self::IntoFuture {
                let (request, timeout, client) = self.into_parts();
                let timeout = timeout.unwrap_or_else(|| client.request_timeout());
                Box::pin(async move { request.perform(&client, timeout).await })
            }
        }

        $crate::request::macros::etcd_request!($request -> $response, $bound);
    };
}
pub(crate) use request;

/// Makes an unbound request type with a method `on(self, &client)` a message to the actor `Etcd`.
macro_rules! etcd_request {
    ($request:ident -> $response:ty, $bound:path) => {
        impl actix::Message for $request {
            type Result = $crate::error::Result<$response>;
        }

        impl<C: $bound> $crate::request::EtcdRequest<C> for $request {
            type Response = $response;

            fn name(&self) -> &'static str {
                stringify!($request)
            }

            fn send_with(self, client: &C) -> $crate::request::ResponseFuture<$response> {
                std::future::IntoFuture::into_future(self.on(client))
            }
        }
    };
}
pub(crate) use etcd_request;

/// Implements `WireResponse` for responses with a header.
macro_rules! response_headers {
    ($($response:ty),* $(,)?) => {
        $(impl $crate::call::WireResponse for $response {
            fn header(&self) -> Option<&$crate::proto::ResponseHeader> {
                self.header.as_ref()
            }
        })*
    };
}
pub(crate) use response_headers;

/// Converts wire responses that have only a header into [`HeaderResponse`](crate::request::HeaderResponse).
macro_rules! header_responses {
    ($($response:ty),* $(,)?) => {
        $crate::request::macros::response_headers!($($response),*);
        $(impl TryFrom<$response> for $crate::request::HeaderResponse {
            type Error = $crate::error::Error;

            fn try_from(response: $response) -> $crate::error::Result<Self> {
                Ok(Self { header: response.header })
            }
        })*
    };
}
pub(crate) use header_responses;

/// Converts a wire response into a response type with a header and fields of the same names. `requires header` fails
/// without a header.
macro_rules! from_response {
    ($type:ident requires header: $response:ty $(=> $($field:ident),+)?) => {
        $crate::request::macros::from_response!(
            @convert $type, $response, ($crate::request::required_header), ($($($field),+)?)
        );
    };
    ($type:ident: $response:ty $(=> $($field:ident),+)?) => {
        $crate::request::macros::from_response!(
            @convert $type, $response, (|header| Ok($crate::request::header(header))), ($($($field),+)?)
        );
    };
    (@convert $type:ident, $response:ty, ($header:expr), ($($field:ident),*)) => {
        impl TryFrom<$response> for $type {
            type Error = $crate::error::Error;

            fn try_from(response: $response) -> $crate::error::Result<Self> {
                let header: $crate::error::Result<_> = ($header)(response.header);
                Ok(Self {
                    header: header?,
                    $($field: response.$field,)*
                })
            }
        }
    };
}
pub(crate) use from_response;
