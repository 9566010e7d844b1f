//! What must never be shown: passwords, keys and tokens.
