//! Reads structs whose field names are written in upper or lower case, as Go's JSON package does.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use std::fmt;

/// A struct whose field names are read without regard to case. A field that appears twice is an error, even if the case
/// differs.
#[derive(Debug, Default)]
pub(super) struct AnyCase<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for AnyCase<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(AnyCaseFields(deserializer)).map(AnyCase)
    }
}

/// Replaces the field names of the input by the names that the struct declares.
struct AnyCaseFields<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for AnyCaseFields<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, StructVisitor { fields, visitor })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct StructVisitor<V> {
    fields: &'static [&'static str],
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StructVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(DeclaredNames { fields: self.fields, map })
    }
}

struct DeclaredNames<A> {
    fields: &'static [&'static str],
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for DeclaredNames<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.map.next_key_seed(DeclaredName(self.fields))? {
            Some(name) => seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Reads a field name; the result is the declared name, or an empty name, which no field has.
struct DeclaredName(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for DeclaredName {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for DeclaredName {
    type Value = &'static str;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<&'static str, E> {
        Ok(self.0.iter().find(|name| name.eq_ignore_ascii_case(text)).copied().unwrap_or_default())
    }
}
