//! Authentication: the token that goes along with every request.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::HeaderValue;

/// A token and which one it is: a rejected token is refreshed once, however many calls it was rejected on.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) value: HeaderValue,
}

/// The token in use, read by every call without a lock.
#[derive(Debug, Default)]
pub(crate) struct TokenCell(ArcSwapOption<Token>);

impl TokenCell {
    pub(crate) fn value(&self) -> Option<HeaderValue> {
        self.0.load().as_ref().map(|token| token.value.clone())
    }

    pub(crate) fn set(&self, token: Token) {
        self.0.store(Some(Arc::new(token)));
    }
}
