//! The messages in a W&B log: `Record`, and the parts of its kinds that are read or written.
//!
//! Source of the field numbers: `wandb/proto/wandb_internal.proto`. Most fields are `Option`s, because their zeros are written too.

use prost::{Message, Oneof};

/// A record of the log. It has one of the messages.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    /// The number of the record in its file, from 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(message, optional, tag = "2")]
    pub history: Option<History>,
    #[prost(message, optional, tag = "3")]
    pub summary: Option<Items>,
    #[prost(message, optional, tag = "5")]
    pub config: Option<Items>,
    #[prost(message, optional, tag = "12")]
    pub metric: Option<Metric>,
    #[prost(message, optional, tag = "17")]
    pub run: Option<Run>,
    #[prost(message, optional, tag = "18")]
    pub exit: Option<Exit>,
    #[prost(message, optional, tag = "21")]
    pub header: Option<Header>,
}

/// A call of `log`.
#[derive(Clone, PartialEq, Message)]
pub struct History {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub step: Option<Step>,
}

/// The step of a call of `log`.
#[derive(Clone, PartialEq, Message)]
pub struct Step {
    #[prost(int64, optional, tag = "1")]
    pub number: Option<i64>,
}

/// Settings, or the newest values of a run.
#[derive(Clone, PartialEq, Message)]
pub struct Items {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<Item>,
}

/// A key with its value.
#[derive(Clone, PartialEq, Message)]
pub struct Item {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The parts of the key, which follow `key` if both are set.
    #[prost(string, repeated, tag = "2")]
    pub nested_key: Vec<String>,
    #[prost(oneof = "ItemValue", tags = "5, 6, 16")]
    pub value: Option<ItemValue>,
}

/// A value.
#[derive(Clone, PartialEq, Oneof)]
pub enum ItemValue {
    /// wandb 0.31 and later writes numbers in typed fields.
    #[prost(sint64, tag = "5")]
    Int(i64),
    #[prost(double, tag = "6")]
    Number(f64),
    /// Other values, and all values of earlier versions.
    #[prost(string, tag = "16")]
    Json(String),
}

/// A definition of a metric: its name, or a pattern, and the metric over which it is drawn.
#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub glob: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub axis: Option<String>,
}

/// The facts about a run.
#[derive(Clone, PartialEq, Message)]
pub struct Run {
    #[prost(string, optional, tag = "1")]
    pub id: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub project: Option<String>,
    #[prost(message, optional, tag = "4")]
    pub config: Option<Items>,
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "13")]
    pub host: Option<String>,
    #[prost(message, optional, tag = "17")]
    pub started: Option<Timestamp>,
    #[prost(bool, tag = "24")]
    pub is_resumed: bool,
}

/// A time: Unix seconds and nanoseconds.
#[derive(Clone, PartialEq, Message)]
pub struct Timestamp {
    #[prost(int64, optional, tag = "1")]
    pub seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    pub nanos: Option<i32>,
}

/// The end of a run.
#[derive(Clone, PartialEq, Message)]
pub struct Exit {
    #[prost(int32, optional, tag = "1")]
    pub code: Option<i32>,
    #[prost(uint64, optional, tag = "2")]
    pub runtime_s: Option<u64>,
}

/// The first record of a file.
#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(message, optional, tag = "1")]
    pub version: Option<Version>,
}

/// The program that wrote a file, and the oldest version of W&B that may read it.
#[derive(Clone, PartialEq, Message)]
pub struct Version {
    #[prost(string, tag = "1")]
    pub producer: String,
    #[prost(string, tag = "2")]
    pub min_consumer: String,
}

impl Record {
    /// Reads a record up to the first byte that is not valid.
    pub fn read(bytes: &[u8]) -> Self {
        let mut record = Self::default();
        // After an error, the record has the fields before it.
        let _ = record.merge(bytes);
        record
    }
}

impl Item {
    /// Returns an item of a history or a summary. The key is one part, so that W&B does not divide it at its dots.
    pub fn of_log(key: String, json: String) -> Self {
        Self { key: None, nested_key: vec![key], value: Some(ItemValue::Json(json)) }
    }

    /// Returns a setting.
    pub fn setting(key: &str, json: &str) -> Self {
        Self { key: Some(key.into()), nested_key: Vec::new(), value: Some(ItemValue::Json(json.into())) }
    }

    /// Returns the whole key, its parts joined with dots.
    pub fn joined_key(&self) -> String {
        let first = self.key.as_deref().filter(|key| !key.is_empty());
        first.into_iter().chain(self.nested_key.iter().map(String::as_str)).collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_damaged_record_has_the_fields_before_the_damage() {
        let items = ["a", "b"].map(|key| Item::of_log(key.into(), "1".into())).to_vec();
        let record = Record { number: 7, summary: Some(Items { items }), ..Record::default() };
        let mut bytes = record.encode_to_vec();
        // The last character of the last value. No byte of UTF-8 is 0xff.
        *bytes.last_mut().unwrap() = 0xff;
        let read = Record::read(&bytes);
        let keys: Vec<String> = read.summary.iter().flat_map(|summary| &summary.items).map(Item::joined_key).collect();
        assert_eq!((read.number, keys), (7, vec!["a".to_owned()]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let record = Record::read(&bytes);
            prop_assert!(record.summary.map_or(0, |summary| summary.items.len()) <= bytes.len());
        }
    }
}
