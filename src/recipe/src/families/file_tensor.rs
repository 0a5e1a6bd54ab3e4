//! Where the tensors of a family are in the files that others publish.

use std::ops::Range;

/// The place of one of our tensors in a published file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTensor {
    /// The name of the tensor in the file.
    pub name: String,
    /// The rows of the file's tensor, if it holds several of ours one below the other.
    pub rows: Option<Range<usize>>,
    /// The columns of the file's tensor, if it holds several of ours side by side.
    pub columns: Option<Range<usize>>,
    /// The order of these rows.
    pub order: RowOrder,
}

impl FileTensor {
    /// Returns the place of a tensor that the file has under `name` as it is here.
    pub fn whole(name: impl Into<String>) -> Self {
        FileTensor { name: name.into(), rows: None, columns: None, order: RowOrder::Same }
    }

    /// Returns, for each row here, the number of its row in the file's tensor. `len` is the number of rows here.
    pub fn source_rows(&self, len: usize) -> Vec<usize> {
        let first = self.rows.as_ref().map_or(0, |rows| rows.start);
        (0..len).map(|row| first + self.order.source(row, len)).collect()
    }
}

/// The order of a tensor's rows in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The order that we have.
    Same,
    /// In each head of this width, first the even rows, then the odd rows: the two channels that a rotary embedding rotates together are half
    /// a head apart. Here they are adjacent.
    HeadHalves(usize),
    /// The second half of the rows comes first.
    Swapped,
}

impl RowOrder {
    /// Returns the place in the file of row `row` of `len` rows.
    fn source(self, row: usize, len: usize) -> usize {
        match self {
            RowOrder::Same => row,
            RowOrder::HeadHalves(width) => {
                let (head, channel) = (row / width, row % width);
                head * width + channel / 2 + channel % 2 * (width / 2)
            }
            RowOrder::Swapped => (row + len / 2) % len,
        }
    }
}

/// Returns the rest of a tensor's name, such as `.weight`, after the name of its layer; `None` if it is not a tensor of the layer.
pub(super) fn part_of<'a>(name: &'a str, layer: &str) -> Option<&'a str> {
    name.strip_prefix(layer).filter(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_halves_are_adjacent_pairs_here() {
        let of = |order, rows| FileTensor { order, rows, ..FileTensor::whole("q") };
        assert_eq!(of(RowOrder::HeadHalves(6), None).source_rows(12), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert_eq!(of(RowOrder::HeadHalves(4), Some(8..12)).source_rows(4), [8, 10, 9, 11]);
        assert_eq!(of(RowOrder::Swapped, None).source_rows(4), [2, 3, 0, 1]);
        assert_eq!(of(RowOrder::Same, Some(3..5)).source_rows(2), [3, 4]);
    }
}
