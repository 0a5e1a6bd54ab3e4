//! Reads the fields of a Protocol Buffers message.

use crate::Error;

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Number(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn bytes(self) -> Result<&'a [u8], Error> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(wrong("bytes", other)),
        }
    }

    pub fn text(self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|e| Error::Malformed(format!("a text is not UTF-8: {e}")))
    }

    pub fn number(self) -> Result<u64, Error> {
        match self {
            Value::Number(number) => Ok(number),
            other => Err(wrong("a number", other)),
        }
    }

    pub fn float(self) -> Result<f32, Error> {
        match self {
            Value::Fixed32(bits) => Ok(f32::from_bits(bits)),
            other => Err(wrong("a float", other)),
        }
    }
}

fn wrong(wanted: &str, found: Value<'_>) -> Error {
    let found = match found {
        Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
        other => format!("{other:?}"),
    };
    Error::Malformed(format!("a field is {found}, expected {wanted}"))
}

/// Iterates over the fields of a message: their numbers and values.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    size: usize,
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Fields { rest: message, size: message.len() }
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), Error> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed64)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes were taken"))),
            other => return Err(self.bad(&format!("wire type {other} is unknown"))),
        };
        Ok((key >> 3, value))
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.bad("a number is too long"))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else { return Err(self.bad("it is truncated")) };
        self.rest = rest;
        Ok(taken)
    }

    fn bad(&self, why: &str) -> Error {
        Error::Malformed(format!("{why} at byte {} of a message of {}", self.size - self.rest.len(), self.size))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}
