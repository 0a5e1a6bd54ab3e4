//! Reads tables in Parquet, as pandas, Hugging Face's datasets and Open-Sora write them.

use super::table::{Cell, ReadTable, TableReader, Values};
use super::{SourceRequest, invalid, unreadable};
use camino::Utf8Path;
use parquet::basic::{ConvertedType, LogicalType};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::{ColumnPath, Type};
use rundir::{Failure, catch_panic, open_regular};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};

/// Reads the rows of a table.
///
/// The library panics on some damaged files, for example on a dictionary that ends within a text.
pub(super) fn read(path: &Utf8Path, root: &Utf8Path, request: &SourceRequest) -> Result<ReadTable, Failure> {
    catch_panic(|| decode(path, root, request)).unwrap_or_else(|| Err(damaged(path, "its pages cannot be decoded")))
}

fn damaged(path: &Utf8Path, why: &str) -> Failure {
    invalid(format!("cannot read {path}"), format!("it is damaged: {why}"), "copy it again")
}

fn decode(path: &Utf8Path, root: &Utf8Path, request: &SourceRequest) -> Result<ReadTable, Failure> {
    let file = open_regular(path).map_err(|error| unreadable(path, error))?;
    let size = file.metadata().map_err(|error| unreadable(path, error))?.len();
    let bad = |error: parquet::errors::ParquetError| {
        let fix = "write it with Snappy compression: table.to_parquet(path, compression=\"snappy\"), or as CSV";
        invalid(format!("cannot read {path}"), error.to_string(), fix)
    };
    let file = SerializedFileReader::new(TableFile(file)).map_err(bad)?;
    if !is_inside(file.metadata(), size) {
        return Err(damaged(path, "the place of a column is not in the file"));
    }
    let schema = file.metadata().file_metadata().schema();
    let names: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
    let those = |is: fn(&Type) -> bool| {
        let fields = schema.get_fields().iter().filter(|field| is(field));
        fields.map(|field| field.name().to_owned()).collect::<Vec<String>>()
    };
    // Other columns may have the bytes of the videos.
    let (numbers, kept) = (those(is_number), those(|field| is_number(field) || is_text(field)));
    let mut all = TableReader::begin(path, root, &names, (&numbers, &kept), request)?;
    if schema.get_fields().iter().any(|field| field.name() == all.video_column() && !field.is_primitive()) {
        return Err(of_bytes(path, all.video_column()));
    }
    let name = path.file_name().unwrap_or_default();
    all.check(stated_rows(file.metadata(), &all), 0)?;
    if !has_whole_dictionaries(&file, &all).map_err(bad)? {
        return Err(damaged(path, "a dictionary has fewer values than it states"));
    }
    let read =
        schema.get_fields().iter().filter(|field| all.columns().any(|name| name == field.name())).cloned().collect();
    let read = Type::group_type_builder(schema.name()).with_fields(read).build().map_err(bad)?;
    // Decodes one group of rows at a time.
    for (at, row) in file.get_row_iter(Some(read)).map_err(bad)?.enumerate() {
        let values = Record(row.map_err(bad)?.into_columns().into_iter().collect());
        all.add(&format!("{name} row {}", at + 1), &values)?;
    }
    Ok(all.done())
}

/// The file of a table, in which a read beyond the end is an error.
///
/// The library skips the elements of an unknown list one by one and ignores the end of the file, so that a damaged length of 2^31
/// takes minutes.
struct TableFile(File);

impl Length for TableFile {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for TableFile {
    type T = UntilEnd;

    fn get_read(&self, start: u64) -> parquet::errors::Result<UntilEnd> {
        self.0.get_read(start).map(UntilEnd)
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<bytes::Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// A reader that fails at the end of the file.
struct UntilEnd(BufReader<File>);

impl Read for UntilEnd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 if !into.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            some => Ok(some),
        }
    }
}

/// Makes the error for a table with the videos themselves, as Hugging Face's datasets write them.
fn of_bytes(path: &Utf8Path, column: &str) -> Failure {
    invalid(
        format!("cannot read {path}"),
        format!("its column '{column}' holds the bytes of videos, and a table must name files"),
        format!(
            "write the bytes of each row to a file, and a table of the files; in Python: open(name, \"wb\").write(row[\"{column}\"][\"bytes\"])"
        ),
    )
}

/// Returns whether a column holds one number per row.
fn is_number(field: &Type) -> bool {
    use parquet::basic::Type::{DOUBLE, FLOAT, INT32, INT64};
    field.is_primitive() && matches!(field.get_physical_type(), INT32 | INT64 | FLOAT | DOUBLE)
}

/// Returns whether a column holds one text per row.
fn is_text(field: &Type) -> bool {
    let info = field.get_basic_info();
    field.is_primitive()
        && (info.converted_type() == ConvertedType::UTF8 || info.logical_type_ref() == Some(&LogicalType::String))
}

/// Returns whether the metadata places all columns inside of a file of this size. The decoder panics otherwise.
fn is_inside(metadata: &ParquetMetaData, size: u64) -> bool {
    let mut columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    columns.all(|column| {
        let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let begin = begin.min(column.data_page_offset());
        let end = begin.checked_add(column.compressed_size()).and_then(|end| u64::try_from(end).ok());
        begin >= 0 && column.compressed_size() >= 0 && end.is_some_and(|end| end <= size)
    })
}

/// Returns whether the dictionaries of the columns that are read have as many bytes as their stated numbers of values need at least. The
/// library takes memory for the stated number first: 16 GiB for 2^31.
fn has_whole_dictionaries(file: &dyn FileReader, table: &TableReader<'_>) -> parquet::errors::Result<bool> {
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group)?;
        for (at, column) in group.metadata().columns().iter().enumerate() {
            if !is_read(table, column.column_path()) {
                continue;
            }
            let mut pages = group.get_column_page_reader(at)?;
            while let Some(next) = pages.peek_next_page()? {
                if !next.is_dict {
                    pages.skip_next_page()?;
                    continue;
                }
                let Some(page) = pages.get_next_page()? else { break };
                let least = least_bytes(column.column_descr().physical_type(), column.column_descr().type_length());
                if u64::from(page.num_values()) * least > page.buffer().len() as u64 {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Returns the bytes that a value takes at least in a dictionary; `length` is that of the values of fixed length.
fn least_bytes(physical: parquet::basic::Type, length: i32) -> u64 {
    use parquet::basic::Type;
    match physical {
        Type::BOOLEAN => 1,
        // The length of the value.
        Type::BYTE_ARRAY | Type::INT32 | Type::FLOAT => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(length).unwrap_or(0).max(1),
    }
}

/// Returns whether a column of the file is in a column that the table reads.
fn is_read(table: &TableReader<'_>, path: &ColumnPath) -> bool {
    table.columns().any(|name| path.parts().first().is_some_and(|root| root == name))
}

/// Returns the number of rows, or of values of a column that is read if that is larger: a list in one row may have any number of values.
fn stated_rows(metadata: &ParquetMetaData, table: &TableReader<'_>) -> u64 {
    let groups = metadata.row_groups().iter();
    let most = |group: &RowGroupMetaData| {
        let columns = group.columns().iter().filter(|column| is_read(table, column.column_path()));
        let values = columns.map(|column| column.num_values());
        values.chain([group.num_rows()]).map(|number| u64::try_from(number).unwrap_or(u64::MAX)).max().unwrap_or(0)
    };
    groups.map(most).fold(0, u64::saturating_add)
}

struct Record(BTreeMap<String, Field>);

impl Values for Record {
    fn get(&self, column: &str) -> Cell {
        self.0.get(column).map_or(Cell::Null, cell)
    }
}

fn cell(field: &Field) -> Cell {
    match field {
        Field::Null => Cell::Null,
        Field::Str(text) => Cell::Text(text.clone()),
        Field::Bytes(bytes) => Cell::of_bytes(bytes.data()),
        Field::Byte(n) => Cell::Number((*n).into()),
        Field::Short(n) => Cell::Number((*n).into()),
        Field::Int(n) => Cell::Number((*n).into()),
        Field::Long(n) => Cell::Number(*n as f64),
        Field::UByte(n) => Cell::Number((*n).into()),
        Field::UShort(n) => Cell::Number((*n).into()),
        Field::UInt(n) => Cell::Number((*n).into()),
        Field::ULong(n) => Cell::Number(*n as f64),
        Field::Float(n) => Cell::Number((*n).into()),
        Field::Double(n) => Cell::Number(*n),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_table_that_the_library_cannot_decode_is_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/fuzz/parquet");
        for entry in Utf8Path::new(folder).read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let refused = read(entry.path(), Utf8Path::new(""), &SourceRequest::default()).unwrap_err();
            assert!(refused.what.contains(entry.file_name()), "{refused}");
        }
    }

    #[test]
    fn a_table_with_the_bytes_of_videos_is_refused_before_they_are_read() {
        let schema = "message clips {
            optional group video { optional binary bytes; optional binary path (UTF8); }
            optional binary caption (UTF8);
        }";
        let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("clips.parquet");
        let file = std::fs::File::create(&path).unwrap();
        parquet::file::writer::SerializedFileWriter::new(file, schema.into(), Arc::default()).unwrap().close().unwrap();
        let refused = read(&path, Utf8Path::new(""), &SourceRequest::default()).unwrap_err();
        assert!(refused.why.contains("'video' holds the bytes"), "{refused}");
    }

    #[test]
    fn the_rows_of_a_table_are_counted_from_its_metadata() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/videos/metadata.parquet");
        let file = SerializedFileReader::new(open_regular(path).unwrap()).unwrap();
        let (path, names) = (Utf8Path::new(path), ["path".to_owned(), "caption".to_owned()]);
        let table = TableReader::begin(path, path, &names, (&[], &[]), &SourceRequest::default()).unwrap();
        assert_eq!(stated_rows(file.metadata(), &table), 2);
    }
}
