//! The messages in an event file: `Event`, and the parts of `Summary` that are read or written.
//!
//! Source of the field numbers: `tensorboard/compat/proto/{event,summary,tensor}.proto`.

use crate::wire::{Fields, Message, Value, first_varint};

/// The version that the first event of a file has.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.SessionStatus.START`.
const START: u64 = 1;
/// `DataType.DT_STRING`.
const DT_STRING: u64 = 7;
/// `DataClass.DATA_CLASS_TENSOR`.
const CLASS_TENSOR: u64 = 2;
/// Red, green and blue.
const RGB: u64 = 3;

/// The content of an event to write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Write<'a> {
    /// The first event of a file.
    Version,
    /// A restart: readers drop the earlier values from this step on.
    Start,
    /// Numbers.
    Scalars(&'a [(String, f64)]),
    /// A text, which TensorBoard shows as Markdown.
    Text { tag: &'a str, text: &'a str },
    /// An image: the bytes of a PNG, JPEG or GIF file.
    Image { tag: &'a str, width: u64, height: u64, file: &'a [u8] },
}

/// Encodes an event.
pub fn encode(wall_time: f64, step: u64, write: Write<'_>) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, wall_time);
    if step > 0 {
        event.int(2, step);
    }
    let value = |summary: &mut Message, tag: &str, fill: &dyn Fn(&mut Message)| {
        summary.message(1, |value| {
            value.bytes(1, tag.as_bytes());
            fill(value);
        });
    };
    match write {
        Write::Version => event.bytes(3, VERSION.as_bytes()),
        Write::Start => event.message(7, |session| session.int(1, START)),
        Write::Scalars(scalars) => event.message(5, |summary| {
            for (tag, number) in scalars {
                value(summary, tag, &|value| value.float(2, *number as f32));
            }
        }),
        Write::Text { tag, text } => event.message(5, |summary| {
            value(summary, tag, &|value| {
                value.message(9, |metadata| {
                    metadata.message(1, |plugin| plugin.bytes(1, b"text"));
                    metadata.int(4, CLASS_TENSOR);
                });
                value.message(8, |tensor| {
                    tensor.int(1, DT_STRING);
                    tensor.message(2, |shape| shape.message(2, |dim| dim.int(1, 1)));
                    tensor.bytes(8, text.as_bytes());
                });
            });
        }),
        Write::Image { tag, width, height, file } => event.message(5, |summary| {
            value(summary, tag, &|value| {
                value.message(4, |image| {
                    image.int(1, height);
                    image.int(2, width);
                    image.int(3, RGB);
                    image.bytes(4, file);
                });
            });
        }),
    }
    event.0
}

/// The parts of an event that are read.
#[derive(Debug, Default, PartialEq)]
pub struct Read<'a> {
    pub wall_time: f64,
    pub step: i64,
    /// Whether the event is a restart: earlier values from this step on are dropped.
    pub is_start: bool,
    /// The summary, whose numbers [`scalars`] returns.
    pub summary: &'a [u8],
}

/// Reads an event.
pub fn decode(event: &[u8]) -> Read<'_> {
    let mut read = Read::default();
    for (field, value) in Fields::new(event) {
        match field {
            1 => read.wall_time = value.float().unwrap_or_default(),
            2 => read.step = value.int() as i64,
            5 => read.summary = value.bytes(),
            7 => read.is_start = Fields::new(value.bytes()).any(|status| status == (1, Value::Varint(START))),
            _ => {}
        }
    }
    read
}

/// Returns the numbers in a summary with their tags. `None` is a number whose tag is not UTF-8 or whose type is not known.
pub fn scalars(summary: &[u8]) -> impl Iterator<Item = Option<(&str, f64)>> {
    let values = Fields::new(summary).filter(|(field, _)| *field == 1).map(|(_, value)| value.bytes());
    values.filter_map(|value| {
        let (mut tag, mut number) = (None, None);
        for (field, value) in Fields::new(value) {
            match field {
                1 => tag = value.text(),
                2 => number = Some(value.float()),
                8 => number = scalar_tensor(value.bytes()),
                _ => {}
            }
        }
        number.map(|number| tag.zip(number))
    })
}

/// Returns the number in a tensor with one number; `Some(None)` if its type is not known. TensorFlow 2 and Keras write scalars as tensors.
fn scalar_tensor(tensor: &[u8]) -> Option<Option<f64>> {
    let (mut dtype, mut elements, mut content, mut typed) = (0, 1, &[][..], None);
    for (field, value) in Fields::new(tensor) {
        match (field, value) {
            (1, value) => dtype = value.int(),
            (2, shape) => {
                let dims = Fields::new(shape.bytes()).filter(|(field, _)| *field == 2);
                let size =
                    |dim: &[u8]| Fields::new(dim).find(|(field, _)| *field == 1).map_or(0, |(_, size)| size.int());
                elements = dims.map(|(_, dim)| size(dim.bytes())).fold(1, u64::saturating_mul);
            }
            (4, value) => content = value.bytes(),
            // Numbers in fields of their type: packed, or one field each.
            (5, Value::Bytes(packed)) => typed = float32(packed),
            (6, Value::Bytes(packed)) => typed = float64(packed),
            (5 | 6, value) => typed = value.float(),
            (7 | 10, Value::Bytes(packed)) => typed = first_varint(packed).map(|value| value as i64 as f64),
            (7 | 10, Value::Varint(value)) => typed = Some(value as i64 as f64),
            _ => {}
        }
    }
    if elements != 1 || dtype == DT_STRING {
        return None;
    }
    Some(match dtype {
        1 => typed.or_else(|| float32(content)),
        2 => typed.or_else(|| float64(content)),
        3 => typed.or_else(|| content.try_into().ok().map(|bytes| f64::from(i32::from_le_bytes(bytes)))),
        9 => typed.or_else(|| content.try_into().ok().map(|bytes| i64::from_le_bytes(bytes) as f64)),
        // uint8, int16, int8 and uint16, in the field of int32.
        4 | 5 | 6 | 17 => typed,
        _ => None,
    })
}

fn float32(bytes: &[u8]) -> Option<f64> {
    bytes.try_into().ok().map(|bytes| f64::from(f32::from_le_bytes(bytes)))
}

fn float64(bytes: &[u8]) -> Option<f64> {
    bytes.try_into().ok().map(f64::from_le_bytes)
}
