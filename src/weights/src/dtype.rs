//! Element types of tensors in files.

use std::fmt;

/// An element type. The names are those of safetensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E4M3,
    F8E5M2,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
}

/// Each type with its name on disk and its size in bytes.
const TABLE: [(Dtype, &str, usize); 15] = [
    (Dtype::Bool, "BOOL", 1),
    (Dtype::U8, "U8", 1),
    (Dtype::I8, "I8", 1),
    (Dtype::F8E4M3, "F8_E4M3", 1),
    (Dtype::F8E5M2, "F8_E5M2", 1),
    (Dtype::I16, "I16", 2),
    (Dtype::U16, "U16", 2),
    (Dtype::F16, "F16", 2),
    (Dtype::BF16, "BF16", 2),
    (Dtype::I32, "I32", 4),
    (Dtype::U32, "U32", 4),
    (Dtype::F32, "F32", 4),
    (Dtype::I64, "I64", 8),
    (Dtype::U64, "U64", 8),
    (Dtype::F64, "F64", 8),
];

impl Dtype {
    /// Parses a dtype name of safetensors, such as `F32` or `BF16`.
    pub fn parse(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns the dtype name of safetensors.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the size of one element in bytes.
    pub fn size(self) -> usize {
        self.row().2
    }

    fn row(self) -> &'static (Dtype, &'static str, usize) {
        TABLE.iter().find(|row| row.0 == self).expect("every dtype is in the table, which a test checks")
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_types_are_one_to_one() {
        for (dtype, name, size) in TABLE {
            assert_eq!(Dtype::parse(name), Some(dtype));
            assert_eq!((dtype.name(), dtype.size()), (name, size));
        }
        assert_eq!(Dtype::parse("float32"), None);
        // The index of the last variant gives the number of variants, so that a variant without a row fails here.
        assert_eq!(Dtype::F64 as usize + 1, TABLE.len());
    }
}
