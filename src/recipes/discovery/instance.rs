//! An instance of a service, and its encoding in etcd.
//!
//! The layout is that of the Go client's `naming/endpoints` package: the key is `<target>/<id>`, the value is JSON such
//! as `{"Op":0,"Addr":"10.0.0.1:80","Metadata":null}`.

use bytes::Bytes;
use serde_json::Value;

use crate::error::{Error, Result};

/// An instance of a service.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Instance {
    /// The key that it is registered under.
    pub key: Bytes,
    /// Its address.
    pub addr: String,
    /// Its metadata; null if it has none.
    pub metadata: Value,
}

impl Instance {
    /// Decodes the value of a key, or returns why it is not an instance. As in Go, the names of fields match in any
    /// case, unknown fields are ignored, and so is `Op`.
    pub(super) fn decode(key: &Bytes, value: &[u8]) -> Result<Self, &'static str> {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(value) else {
            return Err("the value is not a JSON object");
        };
        let mut take = |name: &str| {
            let any_case = || fields.keys().find(|key| key.eq_ignore_ascii_case(name));
            let key = if fields.contains_key(name) {
                name.to_owned()
            } else {
                any_case()?.clone()
            };
            fields.remove(&key)
        };
        let addr = match take("Addr") {
            Some(Value::String(addr)) => addr,
            Some(Value::Null) | None => String::new(),
            Some(_) => return Err("the address is not a string"),
        };
        let metadata = take("Metadata").unwrap_or_default();
        if addr.is_empty() && metadata.is_null() {
            return Err("the value has neither an address nor metadata");
        }
        Ok(Self {
            key: key.clone(),
            addr,
            metadata,
        })
    }
}

/// Encodes the value of an instance's key, byte for byte as Go does.
pub(super) fn encode(addr: &str, metadata: &Value) -> String {
    let addr = Value::from(addr);
    let json = format!(r#"{{"Op":0,"Addr":{addr},"Metadata":{metadata}}}"#);
    // Go also escapes HTML characters. In JSON they only occur inside strings.
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => escaped.push_str(r"\u003c"),
            '>' => escaped.push_str(r"\u003e"),
            '&' => escaped.push_str(r"\u0026"),
            '\u{2028}' => escaped.push_str(r"\u2028"),
            '\u{2029}' => escaped.push_str(r"\u2029"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns the prefix of all instances of a service. Like Go, rejects an empty name: every key would match.
pub(super) fn service_prefix(target: &Bytes) -> Result<Bytes> {
    if target.is_empty() {
        return Err(Error::invalid("the name of the service is empty"));
    }
    Ok([target, &b"/"[..]].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const KEY: Bytes = Bytes::from_static(b"svc/a");

    fn decode(value: &str) -> Result<(String, Value), &'static str> {
        let instance = Instance::decode(&KEY, value.as_bytes())?;
        Ok((instance.addr, instance.metadata))
    }

    #[test]
    fn encoding_matches_go_byte_for_byte() {
        assert_eq!(
            encode("127.0.0.1:8080", &Value::Null),
            r#"{"Op":0,"Addr":"127.0.0.1:8080","Metadata":null}"#
        );
        let metadata = json!({ "zone": "eu", "Weight": 3, "tags": ["a", true, null] });
        assert_eq!(
            encode("unix:///run/a.sock", &metadata),
            r#"{"Op":0,"Addr":"unix:///run/a.sock","Metadata":{"Weight":3,"tags":["a",true,null],"zone":"eu"}}"#
        );
        assert_eq!(
            encode("\"a\\b\"\n<&>\u{2028}ü", &Value::from("x")),
            r#"{"Op":0,"Addr":"\"a\\b\"\n\u003c\u0026\u003e\u2028ü","Metadata":"x"}"#
        );
    }

    #[test]
    fn go_values_are_decoded() {
        let go = r#"{"Op":0,"Addr":"10.0.0.1:80","Metadata":{"zone":"a\u0026b"}}"#;
        assert_eq!(
            decode(go),
            Ok(("10.0.0.1:80".into(), json!({"zone": "a&b"})))
        );
        // The format of gRPC's older naming package, which Go also reads.
        let grpc_naming = r#"{"Op":1,"Addr":"h:1"}"#;
        assert_eq!(decode(grpc_naming), Ok(("h:1".into(), Value::Null)));
        let lower_case = r#"{"addr":"h:1","metadata":7,"weight":2}"#;
        assert_eq!(decode(lower_case), Ok(("h:1".into(), Value::from(7))));
    }

    #[test]
    fn other_values_are_not_instances() {
        for (value, reason) in [
            ("", "not a JSON object"),
            ("10.0.0.1:80", "not a JSON object"),
            ("[]", "not a JSON object"),
            (r#"{"Addr":7}"#, "not a string"),
            ("{}", "neither"),
        ] {
            let error = decode(value).unwrap_err();
            assert!(error.contains(reason), "{value}: {error}");
        }
        assert!(Instance::decode(&KEY, b"\xff\xfe").is_err());
    }

    #[test]
    fn empty_service_name_is_rejected() {
        assert!(service_prefix(&Bytes::new()).is_err());
        assert_eq!(service_prefix(&Bytes::from_static(b"svc")).unwrap(), "svc/");
    }

    proptest! {
        #[test]
        fn every_address_round_trips(addr in ".+", text in ".*") {
            let encoded = encode(&addr, &Value::from(text.clone()));
            prop_assert_eq!(decode(&encoded), Ok((addr, Value::from(text))));
            prop_assert!(!encoded.contains(['<', '>', '&']));
        }

        #[test]
        fn decoding_never_panics(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Instance::decode(&KEY, &value);
        }
    }
}
