//! Conversion between values in etcd, which are bytes, and types of the application.
//!
//! | codec | type | value in etcd |
//! |---|---|---|
//! | [`Json`] (feature `serde`) | any type that serde can serialize and deserialize | JSON |
//! | [`Prost`] | any message of prost | protobuf |
//! | [`Utf8`] | `String`, or any type with `Display` and `FromStr` | text |
//! | [`Raw`] | `Bytes`, `Vec<u8>` | the bytes themselves |
//!
//! An application implements [`Codec`] for formats of its own:
//! ```
//! use actix_etcd::layers::codec::{Codec, CodecError};
//! use bytes::Bytes;
//!
//! /// Numbers as eight bytes, the most significant one first.
//! struct BigEndian;
//!
//! impl Codec<u64> for BigEndian {
//!     fn encode(value: &u64) -> Result<Bytes, CodecError> {
//!         Ok(Bytes::copy_from_slice(&value.to_be_bytes()))
//!     }
//!
//!     fn decode(value: &[u8]) -> Result<u64, CodecError> {
//!         Ok(u64::from_be_bytes(value.try_into()?))
//!     }
//! }
//! # assert_eq!(BigEndian::decode(&BigEndian::encode(&7).unwrap()).unwrap(), 7);
//! # assert!(BigEndian::decode(b"7").is_err());
//! ```

use std::{fmt::Display, str::FromStr};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Outcome};

/// Why a [`Codec`] failed: any error, so that `?` works in its functions.
pub type CodecError = Box<dyn std::error::Error + Send + Sync>;

/// Converts between a type and the bytes of a value in etcd.
pub trait Codec<T>: Send + Sync + 'static {
    /// Returns the bytes of a value.
    fn encode(value: &T) -> Result<Bytes, CodecError>;

    /// Returns the value that these bytes contain.
    fn decode(value: &[u8]) -> Result<T, CodecError>;
}

/// JSON, for types with serde's `Serialize` and `Deserialize`.
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
#[derive(Debug, Clone, Copy)]
pub struct Json;

#[cfg(feature = "serde")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Codec<T> for Json {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        Ok(serde_json::to_vec(value)?.into())
    }

    fn decode(value: &[u8]) -> Result<T, CodecError> {
        Ok(serde_json::from_slice(value)?)
    }
}

/// Protobuf, for messages of prost.
#[derive(Debug, Clone, Copy)]
pub struct Prost;

impl<T: prost::Message + Default> Codec<T> for Prost {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        Ok(value.encode_to_vec().into())
    }

    fn decode(value: &[u8]) -> Result<T, CodecError> {
        Ok(T::decode(value)?)
    }
}

/// Text: `String`, numbers, addresses, and other types with `Display` and `FromStr`.
#[derive(Debug, Clone, Copy)]
pub struct Utf8;

impl<T> Codec<T> for Utf8
where
    T: Display + FromStr<Err: Into<CodecError>>,
{
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        Ok(value.to_string().into())
    }

    fn decode(value: &[u8]) -> Result<T, CodecError> {
        std::str::from_utf8(value)?.parse().map_err(Into::into)
    }
}

/// The bytes themselves.
#[derive(Debug, Clone, Copy)]
pub struct Raw;

impl Codec<Bytes> for Raw {
    fn encode(value: &Bytes) -> Result<Bytes, CodecError> {
        Ok(value.clone())
    }

    fn decode(value: &[u8]) -> Result<Bytes, CodecError> {
        Ok(Bytes::copy_from_slice(value))
    }
}

impl Codec<Vec<u8>> for Raw {
    fn encode(value: &Vec<u8>) -> Result<Bytes, CodecError> {
        Ok(Bytes::copy_from_slice(value))
    }

    fn decode(value: &[u8]) -> Result<Vec<u8>, CodecError> {
        Ok(value.to_vec())
    }
}

/// Encodes the value of a key. The error names the key and the type.
pub(crate) fn encode<T, C: Codec<T>>(key: &[u8], value: &T) -> Result<Bytes, Error> {
    C::encode(value).map_err(|error| codec_failed::<T>(key, "encoded from", &error))
}

/// Decodes the value of a key. The error names the key and the type.
pub(crate) fn decode<T, C: Codec<T>>(key: &[u8], value: &[u8]) -> Result<T, Error> {
    C::decode(value).map_err(|error| codec_failed::<T>(key, "decoded as", &error))
}

fn codec_failed<T>(key: &[u8], action: &str, error: &CodecError) -> Error {
    let reason = format!(
        "the value of `{}` cannot be {action} `{}`: {error}",
        key.escape_ascii(),
        std::any::type_name::<T>()
    );
    Error::new(ErrorKind::CodecFailed, Outcome::NotSent, reason)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn values_survive_encoding_and_decoding() {
        let address = Ipv4Addr::LOCALHOST;
        assert_eq!(Utf8::encode(&address).unwrap(), "127.0.0.1");
        let decoded: Ipv4Addr = Utf8::decode(b"127.0.0.1").unwrap();
        assert_eq!(decoded, address);
        let header = crate::proto::ResponseHeader {
            revision: 7,
            ..Default::default()
        };
        assert_eq!(
            Prost::decode(&Prost::encode(&header).unwrap()).ok(),
            Some(header)
        );
        let raw: Vec<u8> = Raw::decode(b"\xff\0").unwrap();
        assert_eq!(raw, b"\xff\0");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn json_values_survive_encoding_and_decoding() {
        let value = vec![Some(1), None];
        assert_eq!(Json::encode(&value).unwrap(), "[1,null]");
        let decoded: Vec<Option<i32>> = Json::decode(b"[1,null]").unwrap();
        assert_eq!(decoded, value);
    }

    #[test]
    fn error_names_key_type_and_reason() {
        let error = decode::<u16, Utf8>(b"ports/\xff", b"http").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CodecFailed);
        let text = error.to_string();
        assert!(
            text.contains(r"`ports/\xff` cannot be decoded as `u16`: invalid digit"),
            "{text}"
        );
    }
}
