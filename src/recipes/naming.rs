//! How an instance of a service is written down: as the Go client's `naming/endpoints` package does, so that Go
//! programs and gRPC's etcd resolver find what is registered here, and the other way round.
//!
//! The key is `<target>/<anything>`, the value is JSON: `{"Op":0,"Addr":"10.0.0.1:80","Metadata":null}`.

use bytes::Bytes;
use serde_json::Value;

use crate::error::{Error, Result};

/// An instance of a service.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Instance {
    /// The key it is registered under.
    pub key: Bytes,
    /// Where it can be reached.
    pub addr: String,
    /// What else it says of itself; null where it says nothing.
    pub metadata: Value,
}

impl Instance {
    /// Reads what is registered under a key. Like Go, it takes names of fields in any case, does not mind fields it
    /// does not know, and leaves `Op` alone: a key that is there is an instance that is there.
    pub(super) fn read(key: &Bytes, value: &[u8]) -> Result<Self, &'static str> {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(value) else {
            return Err("it is not a JSON object");
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
            Some(_) => return Err("its address is not a string"),
        };
        let metadata = take("Metadata").unwrap_or_default();
        if addr.is_empty() && metadata.is_null() {
            return Err("it has neither an address nor metadata");
        }
        Ok(Self {
            key: key.clone(),
            addr,
            metadata,
        })
    }
}

/// The value of an instance's key, byte for byte as Go writes it.
pub(super) fn write(addr: &str, metadata: &Value) -> String {
    let addr = Value::from(addr);
    let json = format!(r#"{{"Op":0,"Addr":{addr},"Metadata":{metadata}}}"#);
    // Go writes for web pages, too. These can only be parts of strings.
    let mut written = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => written.push_str(r"\u003c"),
            '>' => written.push_str(r"\u003e"),
            '&' => written.push_str(r"\u0026"),
            '\u{2028}' => written.push_str(r"\u2028"),
            '\u{2029}' => written.push_str(r"\u2029"),
            c => written.push(c),
        }
    }
    written
}

/// Where the instances of a service are. Go refuses an empty name, and so must we: everything would be an instance.
pub(super) fn prefix(target: &Bytes) -> Result<Bytes> {
    if target.is_empty() {
        return Err(Error::invalid("the name of the service is empty"));
    }
    Ok(super::queue::prefix(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const KEY: Bytes = Bytes::from_static(b"svc/a");

    fn read(value: &str) -> Result<(String, Value), &'static str> {
        let found = Instance::read(&KEY, value.as_bytes())?;
        Ok((found.addr, found.metadata))
    }

    #[test]
    fn it_is_written_byte_for_byte_as_go_does() {
        assert_eq!(
            write("127.0.0.1:8080", &Value::Null),
            r#"{"Op":0,"Addr":"127.0.0.1:8080","Metadata":null}"#
        );
        let metadata = json!({ "zone": "eu", "Weight": 3, "tags": ["a", true, null] });
        assert_eq!(
            write("unix:///run/a.sock", &metadata),
            r#"{"Op":0,"Addr":"unix:///run/a.sock","Metadata":{"Weight":3,"tags":["a",true,null],"zone":"eu"}}"#
        );
        assert_eq!(
            write("\"a\\b\"\n<&>\u{2028}ü", &Value::from("x")),
            r#"{"Op":0,"Addr":"\"a\\b\"\n\u003c\u0026\u003e\u2028ü","Metadata":"x"}"#
        );
    }

    #[test]
    fn what_go_writes_is_understood() {
        let go = r#"{"Op":0,"Addr":"10.0.0.1:80","Metadata":{"zone":"a\u0026b"}}"#;
        assert_eq!(read(go), Ok(("10.0.0.1:80".into(), json!({"zone": "a&b"}))));
        // As gRPC's former naming package wrote, and as Go reads it.
        let former = r#"{"Op":1,"Addr":"h:1"}"#;
        assert_eq!(read(former), Ok(("h:1".into(), Value::Null)));
        let other = r#"{"addr":"h:1","metadata":7,"weight":2}"#;
        assert_eq!(read(other), Ok(("h:1".into(), Value::from(7))));
    }

    #[test]
    fn what_is_no_instance_is_not_taken_for_one() {
        for (value, why) in [
            ("", "not a JSON object"),
            ("10.0.0.1:80", "not a JSON object"),
            ("[]", "not a JSON object"),
            (r#"{"Addr":7}"#, "not a string"),
            ("{}", "neither"),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains(why), "{value}: {error}");
        }
        assert!(Instance::read(&KEY, b"\xff\xfe").is_err());
    }

    #[test]
    fn a_service_has_a_name() {
        assert!(prefix(&Bytes::new()).is_err());
        assert_eq!(prefix(&Bytes::from_static(b"svc")).unwrap(), "svc/");
    }

    proptest! {
        #[test]
        fn every_address_is_read_as_it_was_written(addr in ".+", text in ".*") {
            let written = write(&addr, &Value::from(text.clone()));
            prop_assert_eq!(read(&written), Ok((addr, Value::from(text))));
            prop_assert!(!written.contains(['<', '>', '&']));
        }

        #[test]
        fn no_value_makes_it_panic(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Instance::read(&KEY, &value);
        }
    }
}
