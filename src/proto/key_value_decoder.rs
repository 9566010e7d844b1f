//! Decodes key-values directly from the wire, for busy watches and large ranges. The generated code decodes what these
//! functions do not handle.

use bytes::Bytes;

use super::{
    KeyValue,
    wire_reader::{WireReader, delimited, number},
};

/// A short list grows by at most this many key-values at once, because the estimate of their number can be wrong.
const SHORT_LIST_GROWTH: usize = 1024;
/// A longer list grows by at most this many times its length.
const GROWTH_FACTOR: usize = 3;

/// Appends the complete key-values at the start of a part of a `RangeResponse`. Returns the length of their encoding.
/// `rest` bytes of the response follow the part.
pub(crate) fn append_key_values(part: &Bytes, rest: usize, kvs: &mut Vec<KeyValue>) -> usize {
    let mut wire = WireReader::new(part, 0..part.len());
    let mut appended = 0;
    while let Some(kv) = next_key_value(&mut wire) {
        let length = wire.position() - appended;
        appended = wire.position();
        if kvs.len() == kvs.capacity() {
            let rest_at_same_size = (wire.remaining() + rest) / length + 1;
            kvs.reserve(rest_at_same_size.min(SHORT_LIST_GROWTH.max(kvs.len() * GROWTH_FACTOR)));
        }
        kvs.push(kv);
    }
    appended
}

fn next_key_value(wire: &mut WireReader<'_>) -> Option<KeyValue> {
    match wire.varint()? {
        KVS => key_value(wire.nested()?),
        _ => None,
    }
}

/// Decodes a key-value. Returns `None` if it has unknown fields or negative numbers.
pub(crate) fn key_value(mut wire: WireReader<'_>) -> Option<KeyValue> {
    let (mut key, mut value) = ((0, 0), (0, 0));
    let (mut create_revision, mut mod_revision, mut version, mut lease) = (0, 0, 0, 0);
    while !wire.is_done() {
        match wire.varint()? {
            KEY => key = wire.delimited()?,
            CREATE_REVISION => create_revision = wire.number()?,
            MOD_REVISION => mod_revision = wire.number()?,
            VERSION => version = wire.number()?,
            VALUE => value = wire.delimited()?,
            LEASE => lease = wire.number()?,
            _ => return None,
        }
    }
    Some(KeyValue {
        key: wire.slice(key),
        create_revision,
        mod_revision,
        version,
        value: wire.slice(value),
        lease,
    })
}

/// Field of `RangeResponse`.
const KVS: u64 = delimited(2);

const KEY: u64 = delimited(1);
const CREATE_REVISION: u64 = number(2);
const MOD_REVISION: u64 = number(3);
const VERSION: u64 = number(4);
const VALUE: u64 = delimited(5);
const LEASE: u64 = number(6);

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::proto::RangeResponse;

    /// Returns key-values with these revisions and leases.
    pub(crate) fn key_values(
        numbers: impl Strategy<Value = i64>,
    ) -> impl Strategy<Value = KeyValue> {
        let bytes = prop::collection::vec(any::<u8>(), 0..200);
        (bytes.clone(), bytes, prop::array::uniform4(numbers)).prop_map(|(key, value, numbers)| {
            KeyValue {
                key: key.into(),
                value: value.into(),
                create_revision: numbers[0],
                mod_revision: numbers[1],
                version: numbers[2],
                lease: numbers[3],
            }
        })
    }

    fn not_negative() -> impl Strategy<Value = i64> {
        prop_oneof![Just(0), 1..300_i64, 0..i64::MAX]
    }

    fn encode(kvs: Vec<KeyValue>) -> Bytes {
        let response = RangeResponse {
            kvs,
            ..RangeResponse::default()
        };
        response.encode_to_vec().into()
    }

    #[test]
    fn key_value_with_negative_number_is_not_decoded() {
        let negative = KeyValue {
            lease: -1,
            ..KeyValue::default()
        };
        let first = encode(vec![KeyValue::default()]);
        let encoded = encode(vec![KeyValue::default(), negative]);
        let mut kvs = Vec::new();
        assert_eq!(append_key_values(&encoded, 0, &mut kvs), first.len());
        assert_eq!(kvs, [KeyValue::default()]);
    }

    #[test]
    fn wrong_estimate_does_not_reserve_much() {
        let encoded = encode(vec![KeyValue::default()]);
        let mut kvs = Vec::new();
        append_key_values(&encoded, 1 << 30, &mut kvs);
        assert!(
            kvs.capacity() <= 2 * SHORT_LIST_GROWTH,
            "{}",
            kvs.capacity()
        );
    }

    #[test]
    fn known_size_is_reserved_at_once() {
        let all = vec![KeyValue::default(); 500];
        let encoded = encode(all.clone());
        let mut kvs = Vec::new();
        append_key_values(&encoded.slice(..40), encoded.len() - 40, &mut kvs);
        assert_eq!(kvs.capacity(), 500);
    }

    proptest! {
        #[test]
        fn complete_key_values_are_appended(
            all in prop::collection::vec(key_values(not_negative()), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let encoded = encode(all.clone());
            let part = encoded.slice(..cut.index(encoded.len() + 1));
            let mut kvs = Vec::new();
            let length = append_key_values(&part, encoded.len() - part.len(), &mut kvs);
            let complete = RangeResponse::decode(part.slice(..length)).unwrap();
            prop_assert_eq!(&complete.kvs, &kvs);
            prop_assert_eq!(&all[..kvs.len()], &kvs[..]);
            let next = all.get(kvs.len()).map(|next| encode(vec![next.clone()]).len());
            prop_assert!(next.is_none_or(|next| length + next > part.len()));
        }

        #[test]
        fn arbitrary_bytes_are_decoded_like_the_generated_code(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            flipped in any::<prop::sample::Index>(),
            all in prop::collection::vec(key_values(not_negative()), 1..4),
        ) {
            let mut mutated = encode(all).to_vec();
            let position = flipped.index(mutated.len());
            mutated[position] ^= bytes.first().copied().unwrap_or(1);
            for part in [Bytes::from(bytes), mutated.into()] {
                let mut kvs = Vec::new();
                let length = append_key_values(&part, 0, &mut kvs);
                prop_assert_eq!(RangeResponse::decode(part.slice(..length)).unwrap().kvs, kvs);
            }
        }
    }
}
