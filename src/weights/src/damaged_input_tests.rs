//! Tests every reader of weights on invalid, damaged and hostile input: no reader may panic, hang, or allocate without bound.
//!
//! `PROPTEST_CASES=100000 PROPTEST_RNG_SEED=$RANDOM cargo test --release -p weights damaged` tries more inputs. An input that
//! breaks a reader goes to the corpus in `tests/fixtures/weights/corpus`, which holds invalid files for each reader.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::resource::{Resource, setrlimit};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;

use crate::fixtures::{copy_folder, temp};
use crate::tensor_spans::Files;
use crate::{
    Config, ConvertRequest, Form, Header, LoraFile, WeightsSource, cast, model_from_diffusers, plan_conversion, shards,
};

/// The longest time for one input of kilobytes, with room for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// The limit of the data segment of this process in bytes: gigabytes above what tests need, and exabytes below what a damaged
/// length can request.
const MEMORY: u64 = 4 << 30;
/// The name of the index of a folder of shards.
const INDEX: &str = "model.safetensors.index.json";
/// Pieces of JSON, TOML, zip archives and pickles that change what follows them.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "[[x]]",
    "\"",
    ":",
    ",",
    "=",
    "\n",
    "null",
    "nan",
    "-1",
    "0",
    "1e400",
    "9223372036854775807",
    "18446744073709551615",
    "U8",
    "\\u0000",
    "../",
    "PK\u{1}\u{2}",
    "PK\u{3}\u{4}",
    "R",
    "b",
    "(",
    "t",
    "s",
    "u",
    "a",
    "e",
    "2",
    "h",
];
/// Numbers at the edges of the widths that readers use.
const EDGES: [u64; 11] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX / 2, u64::MAX];

/// A reader of one file, in a folder where all other files are valid.
struct Reader {
    /// The reader's name and the name of its folder in the corpus.
    name: &'static str,
    /// The file that is damaged.
    file: &'static str,
    /// Writes the folder and returns good contents of the file.
    prepare: fn(&Utf8Path) -> Vec<Vec<u8>>,
    /// Reads the folder.
    read: fn(&Utf8Path) -> Result<(), String>,
}

const READERS: [Reader; 11] = [
    Reader { name: "safetensors", file: "a.safetensors", prepare: prepare_tensors, read: read_header },
    Reader { name: "index", file: INDEX, prepare: prepare_shards, read: read_index },
    Reader { name: "config", file: "config.json", prepare: prepare_config, read: read_config },
    Reader { name: "pickle", file: "data.pkl", prepare: prepare_pickle, read: read_pickle },
    Reader { name: "flight-record", file: "record", prepare: prepare_record, read: read_record },
    Reader { name: "torch", file: "a.pt", prepare: prepare_torch, read: read_torch },
    Reader { name: "dcp", file: "dcp/.metadata", prepare: prepare_dcp, read: read_dcp },
    Reader { name: "distcp", file: "dcp/__0_0.distcp", prepare: prepare_distcp, read: read_dcp },
    Reader { name: "lora", file: "lora/adapter_model.safetensors", prepare: prepare_lora, read: read_lora },
    Reader { name: "manifest", file: "inner/manifest.toml", prepare: prepare_manifest, read: read_checkpoint },
    Reader { name: "model", file: "inner/model.toml", prepare: prepare_model, read: read_checkpoint },
];

impl Reader {
    /// Reads an input in a prepared folder.
    fn on(&self, folder: &Utf8Path, input: &[u8]) -> Result<(), String> {
        fs::write(folder.join(self.file), input).unwrap();
        let began = Instant::now();
        let outcome = (self.read)(folder);
        assert!(began.elapsed() < PATIENCE, "{} took {:?}", self.name, began.elapsed());
        outcome
    }
}

#[test]
fn every_invalid_input_of_the_corpus_is_refused() {
    for reader in &READERS {
        let (_keep, folder) = temp();
        (reader.prepare)(&folder);
        let corpus = Utf8PathBuf::from("../../tests/fixtures/weights/corpus").join(reader.name);
        for entry in corpus.read_dir_utf8().unwrap() {
            let path = entry.unwrap().into_path();
            assert!(reader.on(&folder, &fs::read(&path).unwrap()).is_err(), "{path} was read");
        }
    }
}

#[test]
fn every_reader_reads_good_input_and_survives_damaged_input() {
    setrlimit(Resource::RLIMIT_DATA, MEMORY, MEMORY).unwrap();
    for reader in &READERS {
        let (_keep, folder) = temp();
        let good = (reader.prepare)(&folder);
        for input in &good {
            reader.on(&folder, input).unwrap_or_else(|why| panic!("{}: {why}", reader.name));
        }
        let outcomes = RefCell::new(HashSet::new());
        // A failure prints its input, so that no file of inputs is kept.
        let mut runner = TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
        let damaged = runner.run(&any_input(good), |input| {
            let outcome = reader.on(&folder, &input).err().unwrap_or_default();
            // The words of an error without its names and numbers.
            let words = outcome.split_whitespace().filter(|w| w.chars().all(|c| c.is_ascii_lowercase()));
            outcomes.borrow_mut().insert(words.collect::<String>());
            Ok(())
        });
        damaged.unwrap_or_else(|error| panic!("{}: {error}", reader.name));
        assert!(outcomes.borrow().len() > 2, "{}: damage does not pass the first check", reader.name);
    }
}

/// One change of an input at a position.
#[derive(Debug, Clone)]
enum Change {
    /// Replaces bytes by the same number of other bytes, which keeps all offsets.
    Overwrite(Index, Vec<u8>),
    /// Replaces a number of bytes by other bytes. Inserts if the number is 0, and deletes if there are no other bytes.
    Splice(Index, usize, Vec<u8>),
    /// Inserts a part of a good input.
    Copy(Index, Index, usize),
    /// Replaces a number in text.
    Number(Index, u64),
}

/// Returns damaged copies of valid inputs and a few random inputs.
fn any_input(good: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let damaged = (select(good.clone()), select(good), 0..4, vec(any_change(), 1..8));
    let damaged = damaged.prop_map(|(input, other, part, changes)| {
        // Damage in the header keeps the length before it correct, so that the header is parsed.
        let length = input.first_chunk().map_or(usize::MAX, |bytes| u64::from_le_bytes(*bytes) as usize);
        match input.get(8..).and_then(|rest| rest.split_at_checked(length)) {
            Some((header, data)) if part > 0 => with_length(&changed(header, &other, &changes), data),
            _ => changed(&input, &other, &changes),
        }
    });
    let text = "[\\[\\]{}:,\"a-z0-9_]{0,60}".prop_map(String::into_bytes);
    prop_oneof![8 => damaged, 1 => any::<Vec<u8>>(), 1 => text.clone(), 1 => text.prop_map(|text| with_length(&text, &[]))]
}

fn any_change() -> impl Strategy<Value = Change> {
    let bytes = prop_oneof![
        vec(any::<u8>(), 0..4),
        select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        (select(&EDGES[..]), select(&[1, 2, 4, 8][..])).prop_map(|(edge, width)| edge.to_le_bytes()[..width].to_vec()),
    ];
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), bytes.clone()).prop_map(|(at, put)| Change::Overwrite(at, put)),
        2 => (at(), 0..16usize, bytes).prop_map(|(at, remove, put)| Change::Splice(at, remove, put)),
        1 => (at(), at(), 1..64usize).prop_map(|(at, from, len)| Change::Copy(at, from, len)),
        2 => (at(), any::<u64>(), 0..64).prop_map(|(at, number, bits)| Change::Number(at, number >> bits)),
    ]
}

fn changed(input: &[u8], other: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for change in changes {
        let len = bytes.len();
        let to = |at: usize, removed: usize| at..(at + removed).min(len);
        match change {
            Change::Overwrite(at, put) => {
                let range = to(at.index(len + 1), put.len());
                let put = put[..range.len()].to_vec();
                bytes.splice(range, put);
            }
            Change::Splice(at, removed, put) => {
                drop(bytes.splice(to(at.index(len + 1), *removed), put.iter().copied()))
            }
            Change::Copy(at, from, part) => {
                let from = from.index(other.len() + 1);
                let part = other[from..(from + part).min(other.len())].to_vec();
                bytes.splice(to(at.index(len + 1), 0), part);
            }
            Change::Number(at, number) => {
                let digit = |n: &usize| bytes[*n].is_ascii_digit();
                let from = (at.index(len + 1)..len).find(digit).unwrap_or(len);
                let until = (from..len).find(|n| !digit(n)).unwrap_or(len);
                bytes.splice(from..until, number.to_string().into_bytes());
            }
        }
    }
    bytes
}

/// Returns the length of a header, the header, and the data behind it: the form of a safetensors file.
fn with_length(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

fn fixture(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from("../../tests/fixtures").join(name)
}

/// Returns a safetensors file with this header and `data` bytes of data.
fn tensor_file(json: &str, data: usize) -> Vec<u8> {
    with_length(json.as_bytes(), &vec![1; data])
}

fn prepare_tensors(_: &Utf8Path) -> Vec<Vec<u8>> {
    let two = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}"#;
    vec![
        tensor_file(two, 32),
        tensor_file("{}", 0),
        tensor_file(r#"{"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}"#, 8),
    ]
}

fn read_header(folder: &Utf8Path) -> Result<(), String> {
    let path = folder.join("a.safetensors");
    let header = Header::read(&path).map_err(|e| e.to_string())?;
    let size = fs::metadata(&path).unwrap().len();
    for (name, tensor) in &header.tensors {
        assert!(tensor.begin <= tensor.end && tensor.end <= size, "{name} lies outside of the file");
        let bytes = header.read_tensor(name).map_err(|e| e.to_string())?;
        let values = cast::values(tensor.dtype, &bytes).count() as u64;
        assert!(values == tensor.elements() || values == 0);
    }
    Ok(())
}

fn prepare_shards(folder: &Utf8Path) -> Vec<Vec<u8>> {
    let shard = |n: u8| format!(r#"{{"t{n}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#);
    for n in 1..=2 {
        fs::write(folder.join(format!("model-{n}-of-2.safetensors")), tensor_file(&shard(n), 4)).unwrap();
    }
    let map = r#"{"metadata":{"total_size":8},"weight_map":{"t1":"model-1-of-2.safetensors","t2":"model-2-of-2.safetensors"}}"#;
    vec![map.as_bytes().to_vec()]
}

fn read_index(folder: &Utf8Path) -> Result<(), String> {
    let shards = shards::open(&folder.join(INDEX)).map_err(|e| e.to_string())?;
    let inside = |file: &str| Utf8Path::new(file).parent() == Some(folder);
    assert!(shards.tensors.values().all(|tensor| inside(tensor.file())), "a shard lies outside of the folder");
    Ok(())
}

fn prepare_config(_: &Utf8Path) -> Vec<Vec<u8>> {
    let models = ["cogvideox_2b_tiny", "cogvideox_5b_i2v_tiny", "cogvideox15_5b_i2v_tiny"];
    let path = |model| fixture("oracle/cogvideox").join(model).join("transformer/config.json");
    models.map(|model| fs::read(path(model)).unwrap()).into()
}

fn read_config(folder: &Utf8Path) -> Result<(), String> {
    let model = Config::read(&folder.join("config.json")).and_then(|config| model_from_diffusers(&config));
    let model = model.map_err(|e| e.to_string())?;
    let (back, _) = crate::model_to_diffusers(&model);
    let again = serde_json::from_value(back).unwrap();
    assert_eq!(model_from_diffusers(&again).unwrap(), recipe::Model { latent_scale: 1.0, ..model });
    Ok(())
}

fn prepare_pickle(_: &Utf8Path) -> Vec<Vec<u8>> {
    let archive = fs::read(fixture("weights/flat.pt")).unwrap();
    // The first entry of the archive is the uncompressed pickle: from its protocol to the data descriptor behind it.
    let begin = archive.windows(3).position(|bytes| bytes == b"\x80\x02}").unwrap();
    let end = begin + archive[begin..].windows(4).position(|bytes| bytes == b"PK\x07\x08").unwrap();
    vec![archive[begin..end].to_vec(), fs::read(fixture("weights/dcp/.metadata")).unwrap()]
}

fn read_pickle(folder: &Utf8Path) -> Result<(), String> {
    crate::pickle::Pickle::read(&fs::read(folder.join("data.pkl")).unwrap()).map(drop)
}

fn prepare_record(_: &Utf8Path) -> Vec<Vec<u8>> {
    vec![fs::read(fixture("weights/flight-record")).unwrap()]
}

fn read_record(folder: &Utf8Path) -> Result<(), String> {
    crate::read_flight_record(&folder.join("record")).map(drop).map_err(|failure| failure.to_string())
}

fn prepare_torch(_: &Utf8Path) -> Vec<Vec<u8>> {
    ["flat.pt", "wrapped.pth"].map(|name| fs::read(fixture("weights").join(name)).unwrap()).into()
}

fn read_torch(folder: &Utf8Path) -> Result<(), String> {
    let path = folder.join("a.pt");
    read_all(&path)?;
    let file: Arc<Utf8Path> = Arc::from(path.as_path());
    let size = fs::metadata(&path).unwrap().len();
    let archive = crate::archive::Archive::open(&mut Files::default(), &file, 0, size).unwrap();
    let entries: Vec<(u64, u64)> = archive.places().collect();
    for (name, tensor) in &WeightsSource::open(&path).unwrap().tensors {
        for span in &tensor.spans {
            let inside = |(at, len): &(u64, u64)| *at <= span.begin && span.begin + span.len <= at + len;
            assert!(entries.iter().any(inside), "a span of {name} lies outside of all entries");
        }
    }
    Ok(())
}

fn prepare_dcp(folder: &Utf8Path) -> Vec<Vec<u8>> {
    copy_folder(&fixture("weights/dcp"), &folder.join("dcp"));
    vec![fs::read(folder.join("dcp/.metadata")).unwrap()]
}

fn prepare_distcp(folder: &Utf8Path) -> Vec<Vec<u8>> {
    prepare_dcp(folder);
    vec![fs::read(folder.join("dcp/__0_0.distcp")).unwrap()]
}

fn read_dcp(folder: &Utf8Path) -> Result<(), String> {
    read_all(&folder.join("dcp"))
}

fn prepare_lora(folder: &Utf8Path) -> Vec<Vec<u8>> {
    copy_folder(&fixture("weights/lora/peft"), &folder.join("lora"));
    // It would contradict the metadata of the second file.
    fs::remove_file(folder.join("lora/adapter_config.json")).unwrap();
    let own = fs::read(folder.join("lora/adapter_model.safetensors")).unwrap();
    vec![own, fs::read(fixture("weights/lora/diffusers/pytorch_lora_weights.safetensors")).unwrap()]
}

fn read_lora(folder: &Utf8Path) -> Result<(), String> {
    LoraFile::open(&folder.join("lora")).map(drop).map_err(|e| e.to_string())
}

fn inner(folder: &Utf8Path) -> Utf8PathBuf {
    let target = folder.join("inner");
    if !target.exists() {
        let source = fixture("oracle/cogvideox/cogvideox15_5b_tiny/transformer");
        let plan = plan_conversion(&ConvertRequest::new(source, &target, Form::Internal)).unwrap();
        plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap();
    }
    target
}

fn prepare_manifest(folder: &Utf8Path) -> Vec<Vec<u8>> {
    let whole = fs::read_to_string(inner(folder).join("manifest.toml")).unwrap();
    // A damaged manifest fails its checksum. A manifest without a checksum is accepted, so that damage reaches its
    // fields.
    let (_, rest) = whole.split_once('\n').unwrap();
    vec![rest.into(), whole.into()]
}

fn prepare_model(folder: &Utf8Path) -> Vec<Vec<u8>> {
    let (model, manifest) = (inner(folder).join("model.toml"), inner(folder).join("manifest.toml"));
    // The manifest contains the file's size. That check would fail before the file is read.
    let mut table: toml::Table = fs::read_to_string(&manifest).unwrap().parse().unwrap();
    let files = table["files"].as_array_mut().unwrap();
    files.retain(|file| file["name"].as_str() != Some("model.toml"));
    fs::write(&manifest, table.to_string()).unwrap();
    vec![fs::read(model).unwrap()]
}

/// Opens a checkpoint and plans its conversion.
fn read_checkpoint(folder: &Utf8Path) -> Result<(), String> {
    let request = ConvertRequest::new(folder.join("inner"), folder.join("outer"), Form::Diffusers);
    let plan = plan_conversion(&request).map_err(|e| e.to_string())?;
    plan.report.check("it").map_err(|e| e.to_string())
}

/// Opens weights and reads the last byte of each span of each tensor.
fn read_all(path: &Utf8Path) -> Result<(), String> {
    let source = WeightsSource::open(path).map_err(|e| e.to_string())?;
    let mut files = Files::default();
    for (name, tensor) in source.tensors.iter().chain(&source.optimizer) {
        let held: u64 = tensor.spans.iter().map(|span| span.len).sum();
        let size = tensor.shape.iter().product::<usize>() * tensor.dtype.size();
        assert_eq!(held, size as u64, "the spans of {name} do not add up to its size");
        let mut byte = [0];
        for span in tensor.spans.iter().filter(|span| span.len > 0) {
            files.read(&span.file, span.begin + span.len - 1, &mut byte).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}
