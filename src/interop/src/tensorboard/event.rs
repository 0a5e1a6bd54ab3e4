//! The messages in an event file: `Event`, and the parts of `Summary` that are read or written.
//!
//! Source of the field numbers: `tensorboard/compat/proto/{event,summary,tensor}.proto`.

use prost::{Message, Oneof};

/// The version that the first event of a file has.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.SessionStatus.START`.
const START: i32 = 1;
/// `DataType.DT_STRING`.
const DT_STRING: i32 = 7;
/// `DataClass.DATA_CLASS_TENSOR`.
const CLASS_TENSOR: i32 = 2;
/// Red, green and blue.
const RGB: i32 = 3;

/// An event: a record of the file.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Unix seconds.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

/// A start or an end of the program.
#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// The values of a step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// A value with its tag.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// Bytes, because a tag that is not UTF-8 must not end the event.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub tag: Option<Vec<u8>>,
    #[prost(oneof = "Content", tags = "2, 4, 8")]
    pub content: Option<Content>,
    #[prost(message, optional, boxed, tag = "9")]
    pub metadata: Option<Box<Metadata>>,
}

/// The content of a value. The large ones have a box each, so that many small values stay small.
#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    #[prost(float, tag = "2")]
    Number(f32),
    #[prost(message, boxed, tag = "4")]
    Image(Box<Image>),
    #[prost(message, boxed, tag = "8")]
    Tensor(Box<Tensor>),
}

/// An image.
#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(uint64, tag = "1")]
    pub height: u64,
    #[prost(uint64, tag = "2")]
    pub width: u64,
    #[prost(int32, tag = "3")]
    pub colorspace: i32,
    /// The bytes of a PNG, JPEG or GIF file.
    #[prost(bytes = "vec", tag = "4")]
    pub file: Vec<u8>,
}

/// A tensor. Its numbers are in `content`, or in the field of their type.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
    /// Little-endian.
    #[prost(bytes = "vec", tag = "4")]
    pub content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    pub floats: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    pub doubles: Vec<f64>,
    /// int32, and the shorter integers.
    #[prost(int32, repeated, tag = "7")]
    pub ints: Vec<i32>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub strings: Vec<Vec<u8>>,
    #[prost(int64, repeated, tag = "10")]
    pub int64s: Vec<i64>,
}

/// The shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(message, repeated, tag = "2")]
    pub dims: Vec<Dim>,
}

/// An axis of a shape.
#[derive(Clone, PartialEq, Message)]
pub struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// How a value is shown.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub plugin: Option<Plugin>,
    #[prost(int32, tag = "4")]
    pub class: i32,
}

/// The plugin that shows a value.
#[derive(Clone, PartialEq, Message)]
pub struct Plugin {
    #[prost(string, tag = "1")]
    pub name: String,
}

impl Event {
    /// Returns the first event of a file.
    pub fn version() -> Self {
        Self { file_version: Some(VERSION.into()), ..Self::default() }
    }

    /// Returns a restart: readers drop the earlier values from its step on.
    pub fn start() -> Self {
        Self { session_log: Some(SessionLog { status: START }), ..Self::default() }
    }

    /// Returns an event with values.
    pub fn of(values: Vec<Value>) -> Self {
        Self { summary: Some(Summary { values }), ..Self::default() }
    }

    /// Reads an event up to the first byte that is not valid.
    pub fn read(record: &[u8]) -> Self {
        let mut event = Self::default();
        // After an error, the event has the fields before it.
        let _ = event.merge(record);
        event
    }

    /// Returns whether the event is a restart.
    pub fn is_start(&self) -> bool {
        self.session_log.as_ref().is_some_and(|session| session.status == START)
    }

    /// Returns the numbers in the event with their tags. `None` is a number whose tag is not UTF-8 or whose type is not known.
    pub fn scalars(&self) -> impl Iterator<Item = Option<(&str, f64)>> {
        let values = self.summary.iter().flat_map(|summary| &summary.values);
        values.filter_map(|value| {
            let number = match value.content.as_ref()? {
                Content::Number(number) => Some(f64::from(*number)),
                Content::Tensor(tensor) => tensor.scalar()?,
                Content::Image(_) => return None,
            };
            let tag = value.tag.as_deref().and_then(|tag| std::str::from_utf8(tag).ok());
            Some(tag.zip(number))
        })
    }
}

impl Value {
    fn new(tag: &str, content: Content) -> Self {
        Self { tag: Some(tag.into()), content: Some(content), metadata: None }
    }

    /// Returns a number.
    pub fn number(tag: &str, number: f64) -> Self {
        Self::new(tag, Content::Number(number as f32))
    }

    /// Returns a text, which TensorBoard shows as Markdown.
    pub fn text(tag: &str, text: &str) -> Self {
        let tensor = Tensor {
            dtype: DT_STRING,
            shape: Some(Shape { dims: vec![Dim { size: 1 }] }),
            strings: vec![text.into()],
            ..Tensor::default()
        };
        let metadata = Metadata { plugin: Some(Plugin { name: "text".into() }), class: CLASS_TENSOR };
        Self { metadata: Some(metadata.into()), ..Self::new(tag, Content::Tensor(tensor.into())) }
    }

    /// Returns an image: the bytes of a PNG, JPEG or GIF file.
    pub fn image(tag: &str, (width, height): (u64, u64), file: &[u8]) -> Self {
        let image = Image { height, width, colorspace: RGB, file: file.into() };
        Self::new(tag, Content::Image(image.into()))
    }
}

impl Tensor {
    /// Returns the number in a tensor with one number; `Some(None)` if its type is not known. TensorFlow 2 and Keras write scalars as
    /// tensors.
    fn scalar(&self) -> Option<Option<f64>> {
        let dims = self.shape.iter().flat_map(|shape| &shape.dims);
        let elements = dims.map(|dim| dim.size as u64).fold(1, u64::saturating_mul);
        if elements != 1 || self.dtype == DT_STRING {
            return None;
        }
        let (float, double) = (self.floats.first(), self.doubles.first());
        let (int, int64) = (self.ints.first(), self.int64s.first());
        Some(match self.dtype {
            1 => float.copied().or_else(|| self.bytes().map(f32::from_le_bytes)).map(f64::from),
            2 => double.copied().or_else(|| self.bytes().map(f64::from_le_bytes)),
            3 => int.copied().or_else(|| self.bytes().map(i32::from_le_bytes)).map(f64::from),
            9 => int64.copied().or_else(|| self.bytes().map(i64::from_le_bytes)).map(|number| number as f64),
            // uint8, int16, int8 and uint16, in the field of int32.
            4 | 5 | 6 | 17 => int.copied().map(f64::from),
            _ => None,
        })
    }

    /// Returns the content of a tensor with one number of `N` bytes.
    fn bytes<const N: usize>(&self) -> Option<[u8; N]> {
        self.content.as_slice().try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_damaged_event_has_the_fields_before_the_damage() {
        let values = ["a", "b"].map(|tag| Value::number(tag, 0.5)).to_vec();
        let mut bytes = Event { wall_time: 7.0, step: 3, ..Event::of(values) }.encode_to_vec();
        // The key of the last number, before its four bytes. There is no wire type 7.
        let key = bytes.len() - 5;
        bytes[key] |= 7;
        let event = Event::read(&bytes);
        assert_eq!((event.wall_time, event.step), (7.0, 3));
        assert_eq!(event.scalars().collect::<Vec<_>>(), [Some(("a", 0.5))]);
    }

    #[test]
    fn a_number_whose_tag_is_not_utf_8_is_reported() {
        let value = Value { tag: Some(vec![0xff]), ..Value::number("", 1.0) };
        let event = Event::read(&Event::of(vec![value, Value::number("a", 1.0)]).encode_to_vec());
        assert_eq!(event.scalars().collect::<Vec<_>>(), [None, Some(("a", 1.0))]);
    }

    #[test]
    fn a_tensor_with_one_number_of_any_type_is_a_scalar() {
        let of = |dtype| Tensor { dtype, ..Tensor::default() };
        for tensor in [
            Tensor { floats: vec![-2.0], ..of(1) },
            Tensor { content: (-2f32).to_le_bytes().into(), ..of(1) },
            Tensor { doubles: vec![-2.0], ..of(2) },
            Tensor { content: (-2f64).to_le_bytes().into(), ..of(2) },
            Tensor { ints: vec![-2], ..of(3) },
            Tensor { content: (-2i32).to_le_bytes().into(), ..of(3) },
            Tensor { ints: vec![-2], ..of(6) },
            Tensor { int64s: vec![-2], ..of(9) },
            Tensor { content: (-2i64).to_le_bytes().into(), ..of(9) },
        ] {
            let read = Tensor::decode(&tensor.encode_to_vec()[..]).unwrap();
            assert_eq!(read.scalar(), Some(Some(-2.0)), "{tensor:?}");
            let two = Tensor { shape: Some(Shape { dims: vec![Dim { size: 2 }] }), ..read };
            assert_eq!(two.scalar(), None, "{tensor:?}");
        }
        assert_eq!((of(DT_STRING).scalar(), of(10).scalar()), (None, Some(None)), "a string, a bool");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let event = Event::read(&bytes);
            prop_assert!(event.scalars().count() <= bytes.len());
        }
    }
}
