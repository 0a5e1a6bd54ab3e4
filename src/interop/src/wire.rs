//! The encoding of protobuf messages: fields in a byte slice, and a buffer that fields are added to.
//!
//! vidtui needs about ten fields of the messages. Generated code would need `protoc`, or a generated file for each release of the
//! formats. Unknown fields are skipped. Source: protobuf.dev/programming-guides/encoding.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value<'a> {
    /// An integer, an enum or a bool.
    Varint(u64),
    /// A double.
    Fixed64([u8; 8]),
    /// A string, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// A float.
    Fixed32([u8; 4]),
}

impl<'a> Value<'a> {
    /// Returns the bytes of a string, message or packed field, and nothing for another type.
    pub fn bytes(self) -> &'a [u8] {
        if let Self::Bytes(bytes) = self { bytes } else { &[] }
    }

    /// Returns the text of a string field, unless it is not UTF-8.
    pub fn text(self) -> Option<&'a str> {
        if let Self::Bytes(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    /// Returns an integer; 0 for another type.
    pub fn int(self) -> u64 {
        if let Self::Varint(value) = self { value } else { 0 }
    }

    /// Returns a float or a double.
    pub fn float(self) -> Option<f64> {
        match self {
            Self::Fixed32(bytes) => Some(f64::from(f32::from_le_bytes(bytes))),
            Self::Fixed64(bytes) => Some(f64::from_le_bytes(bytes)),
            _ => None,
        }
    }
}

/// Iterates over the fields of a message: number and value. Ends at the first byte that is not valid protobuf.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// Returns the first number of a packed field.
pub(crate) fn first_varint(packed: &[u8]) -> Option<u64> {
    Fields::new(packed).varint()
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(self.take(8)?.try_into().ok()?),
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

/// A message that is being written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn int(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    pub fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    pub fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
    }

    pub fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// Adds a nested message that `fill` fills.
    pub fn message(&mut self, field: u64, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_type_of_field_is_read_as_it_was_written() {
        let mut message = Message::default();
        message.int(1, u64::MAX);
        message.double(2, -0.5);
        message.message(300, |inner| inner.float(16, f32::NAN));
        let fields: Vec<_> = Fields::new(&message.0).collect();
        assert_eq!(fields[0], (1, Value::Varint(u64::MAX)));
        assert_eq!(fields[1].1.float(), Some(-0.5));
        let (number, inner) = fields[2];
        let (inner_number, value) = Fields::new(inner.bytes()).next().unwrap();
        assert_eq!((number, inner_number), (300, 16));
        assert!(value.float().unwrap().is_nan());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Fields::new(&bytes).count() <= bytes.len());
        }
    }
}
