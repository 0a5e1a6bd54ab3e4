//! Reads tables in Parquet, as pandas, Hugging Face's datasets and Open-Sora write them.

use super::table::{Cell, Columns, Values, rows};
use super::{ClipRow, SourceRequest, invalid, unreadable};
use camino::Utf8Path;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use rundir::Failure;
use std::collections::BTreeMap;
use std::fs::File;

/// Reads the rows of a table.
pub(super) fn read(
    path: &Utf8Path,
    root: &Utf8Path,
    request: &SourceRequest,
) -> Result<(Columns, Vec<ClipRow>), Failure> {
    let file = File::open(path).map_err(|error| unreadable(path, error))?;
    let bad = |error: parquet::errors::ParquetError| {
        let fix = "write it with Snappy compression: table.to_parquet(path, compression=\"snappy\"), or as CSV";
        invalid(format!("cannot read {path}"), error.to_string(), fix)
    };
    let file = SerializedFileReader::new(file).map_err(bad)?;
    let schema = file.metadata().file_metadata().schema();
    let names: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
    let columns = Columns::choose(path, &names, request)?;
    let name = path.file_name().unwrap_or_default();
    let mut all = Vec::new();
    for (at, row) in file.get_row_iter(None).map_err(bad)?.enumerate() {
        let mut values = Record(row.map_err(bad)?.into_columns().into_iter().collect());
        all.extend(rows(root, &columns, &format!("{name} row {}", at + 1), &mut values));
    }
    Ok((columns, all))
}

struct Record(BTreeMap<String, Field>);

impl Values for Record {
    fn take(&mut self, column: &str) -> Cell {
        self.0.remove(column).map_or(Cell::Null, cell)
    }
}

fn cell(field: Field) -> Cell {
    match field {
        Field::Null => Cell::Null,
        Field::Str(text) => Cell::Text(text),
        Field::Bytes(bytes) => Cell::of_bytes(bytes.data()),
        Field::Byte(n) => Cell::Number(n.into()),
        Field::Short(n) => Cell::Number(n.into()),
        Field::Int(n) => Cell::Number(n.into()),
        Field::Long(n) => Cell::Number(n as f64),
        Field::UByte(n) => Cell::Number(n.into()),
        Field::UShort(n) => Cell::Number(n.into()),
        Field::UInt(n) => Cell::Number(n.into()),
        Field::ULong(n) => Cell::Number(n as f64),
        Field::Float(n) => Cell::Number(n.into()),
        Field::Double(n) => Cell::Number(n),
        Field::ListInternal(list) => {
            let texts = list.elements().iter().map(|field| match field {
                Field::Str(text) => text.clone(),
                other => other.to_string(),
            });
            Cell::Texts(texts.collect())
        }
        other => Cell::Text(other.to_string()),
    }
}
