//! Every reader of weights on damaged and hostile input: nothing panics, hangs, or allocates without bound.
//!
//! `cargo xtask fuzz` runs each reader for a while on mutations of good files and of the corpus in
//! `tests/fixtures/weights/corpus`; an input that ends in words not seen before is mutated further. What it finds is put
//! into the corpus, which the tests replay.

use crate::corpus;
use crate::fixtures::temp;
use crate::tensor_spans::Files;
use crate::{Config, ConvertRequest, Form, Header, Lora, Source, cast, model_from_diffusers, plan_conversion, shards};
use camino::{Utf8Path, Utf8PathBuf};
use nix::sys::resource::{Resource, setrlimit};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than any input of this size may take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the whole process may allocate: far more than inputs of kilobytes need, far less than one could ask for.
const MEMORY: u64 = 2 << 30;
/// Inputs that are kept to be damaged further: some readers repeat what they were given, and all words are new then.
const LONGEST_QUEUE: usize = 2000;
/// Inputs are kept to this size.
const LONGEST: usize = 128 << 10;

/// A reader, on one file of a folder in which everything else is good.
pub struct Reader {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// The file that is damaged.
    file: &'static str,
    /// Makes the folder, and gives good contents of the file.
    prepare: fn(&Utf8Path) -> Vec<Vec<u8>>,
    /// Reads; what went wrong, in words.
    pub read: fn(&Utf8Path) -> Result<(), String>,
    built: Built,
}

/// How an input is built, so that damage gets past the first check.
enum Built {
    Json,
    Toml,
    /// Offsets: most damage keeps the length.
    Binary,
    /// The length of a header, the header in JSON, data: most damage is in the header, and the length is put right.
    Tensors,
}

/// Every reader.
pub const READERS: [Reader; 10] = [
    Reader {
        name: "safetensors",
        file: "a.safetensors",
        prepare: prepare_tensors,
        read: read_header,
        built: Built::Tensors,
    },
    Reader { name: "index", file: corpus::INDEX, prepare: prepare_shards, read: read_index, built: Built::Json },
    Reader { name: "config", file: "config.json", prepare: prepare_config, read: read_config, built: Built::Json },
    Reader { name: "pickle", file: "data.pkl", prepare: prepare_pickle, read: read_pickle, built: Built::Binary },
    Reader { name: "torch", file: "a.pt", prepare: prepare_torch, read: read_torch, built: Built::Binary },
    Reader { name: "dcp", file: "dcp/.metadata", prepare: prepare_dcp, read: read_dcp, built: Built::Binary },
    Reader { name: "distcp", file: "dcp/__0_0.distcp", prepare: prepare_distcp, read: read_dcp, built: Built::Binary },
    Reader {
        name: "lora",
        file: "lora/adapter_model.safetensors",
        prepare: prepare_lora,
        read: read_lora,
        built: Built::Tensors,
    },
    Reader {
        name: "manifest",
        file: "inner/manifest.toml",
        prepare: prepare_manifest,
        read: read_checkpoint,
        built: Built::Toml,
    },
    Reader {
        name: "model",
        file: "inner/model.toml",
        prepare: prepare_model,
        read: read_checkpoint,
        built: Built::Toml,
    },
];

impl Built {
    /// Text that means something in it.
    fn words(&self) -> &'static [&'static str] {
        match self {
            Self::Json | Self::Tensors => {
                &["{", "}", "[", "]", "\"", ":", ",", "null", "-1", "1e400", "18446744073709551615", "U8", "\\u0000"]
            }
            Self::Toml => {
                &["=", "[", "]", "[[x]]", "\"", "\n", "-1", "0", "9223372036854775807", "../", "nan", "1e400"]
            }
            // Marks of archives, and instructions of pickles that take, make or remember.
            Self::Binary => {
                &["PK\u{1}\u{2}", "PK\u{3}\u{4}", "R", "b", "(", "t", "}", "s", "u", "]", "a", "e", "0", "2", "h"]
            }
        }
    }
}

fn fixture(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from("../../tests/fixtures").join(name)
}

/// A safetensors file with a header of that text and so many bytes of data.
fn tensor_file(json: &str, data: usize) -> Vec<u8> {
    let length = (json.len() as u64).to_le_bytes();
    [&length[..], json.as_bytes(), &vec![1; data]].concat()
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
    let shards = shards::open(&folder.join(corpus::INDEX)).map_err(|e| e.to_string())?;
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
    // The first entry of the archive is the pickle, stored as it is: from protocol 2 to the end of the next entry's start.
    let begin = archive.windows(3).position(|bytes| bytes == b"\x80\x02}").unwrap();
    let end = begin + archive[begin..].windows(4).position(|bytes| bytes == b"PK\x07\x08").unwrap();
    vec![archive[begin..end].to_vec(), fs::read(fixture("weights/dcp/.metadata")).unwrap()]
}

fn read_pickle(folder: &Utf8Path) -> Result<(), String> {
    crate::pickle::Pickle::read(&fs::read(folder.join("data.pkl")).unwrap()).map(drop)
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
    for (name, tensor) in &Source::open(&path).unwrap().tensors {
        for span in &tensor.spans {
            let inside = |(at, len): &(u64, u64)| *at <= span.begin && span.begin + span.len <= at + len;
            assert!(entries.iter().any(inside), "{name} takes what no entry holds");
        }
    }
    Ok(())
}

fn copy(from: &Utf8Path, to: &Utf8Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn prepare_dcp(folder: &Utf8Path) -> Vec<Vec<u8>> {
    copy(&fixture("weights/dcp"), &folder.join("dcp"));
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
    copy(&fixture("weights/lora/peft"), &folder.join("lora"));
    let own = fs::read(folder.join("lora/adapter_model.safetensors")).unwrap();
    vec![own, fs::read(fixture("weights/lora/diffusers/pytorch_lora_weights.safetensors")).unwrap()]
}

fn read_lora(folder: &Utf8Path) -> Result<(), String> {
    Lora::open(&folder.join("lora")).map(drop).map_err(|e| e.to_string())
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
    // Behind its checksum nothing else would be tried; without one it is read as those of before there were any.
    let (_, rest) = whole.split_once('\n').unwrap();
    vec![rest.into(), whole.into()]
}

fn prepare_model(folder: &Utf8Path) -> Vec<Vec<u8>> {
    let (model, manifest) = (inner(folder).join("model.toml"), inner(folder).join("manifest.toml"));
    // The manifest knows the file's size, and would be all that is heard of.
    let mut table: toml::Table = fs::read_to_string(&manifest).unwrap().parse().unwrap();
    let files = table["files"].as_array_mut().unwrap();
    files.retain(|file| file["name"].as_str() != Some("model.toml"));
    fs::write(&manifest, table.to_string()).unwrap();
    vec![fs::read(model).unwrap()]
}

/// Opens a checkpoint and plans what becomes of it; the plan may be one that is refused.
fn read_checkpoint(folder: &Utf8Path) -> Result<(), String> {
    let request = ConvertRequest::new(folder.join("inner"), folder.join("outer"), Form::Diffusers);
    let plan = plan_conversion(&request).map_err(|e| e.to_string())?;
    plan.report.check("it").map_err(|e| e.to_string())
}

/// Opens weights, and reads what lies where they say that tensors are.
fn read_all(path: &Utf8Path) -> Result<(), String> {
    let source = Source::open(path).map_err(|e| e.to_string())?;
    let mut files = Files::default();
    for (name, tensor) in source.tensors.iter().chain(&source.optimizer) {
        let held: u64 = tensor.spans.iter().map(|span| span.len).sum();
        let size = tensor.shape.iter().product::<usize>() * tensor.dtype.size();
        assert_eq!(held, size as u64, "the parts of {name} are not its size");
        let mut byte = [0];
        for span in tensor.spans.iter().filter(|span| span.len > 0) {
            files.read(&span.file, span.begin + span.len - 1, &mut byte).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

impl Reader {
    /// Makes its folder; returns good contents of its file.
    pub fn prepare(&self, folder: &Utf8Path) -> Vec<Vec<u8>> {
        (self.prepare)(folder)
    }

    /// Reads an input in a folder that was prepared.
    pub fn on(&self, folder: &Utf8Path, input: &[u8]) -> Result<(), String> {
        fs::write(folder.join(self.file), input).unwrap();
        (self.read)(folder)
    }
}

/// Numbers that are as good as random: SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }
}

/// Damages an input, in a way that its build allows for.
fn mutated(dice: &mut Dice, built: &Built, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mildly = dice.below(4) > 0;
    let length = input.get(..8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()) as usize);
    match built {
        Built::Tensors if mildly && input.len() >= 8 && length <= input.len() - 8 => {
            let (header, data) = input[8..].split_at(length);
            let header = damaged(dice, built, header, other, true);
            [&(header.len() as u64).to_le_bytes()[..], &header, data].concat()
        }
        Built::Binary => damaged(dice, built, input, other, !mildly),
        _ => damaged(dice, built, input, other, true),
    }
}

/// Damages bytes in one to eight places.
fn damaged(dice: &mut Dice, built: &Built, input: &[u8], other: &[u8], resize: bool) -> Vec<u8> {
    let (mut bytes, words) = (input.to_vec(), built.words());
    for _ in 0..=dice.below(8) {
        let at = dice.below(bytes.len() + 1);
        let end = (at + 1 + dice.below(16)).min(bytes.len());
        let put: Vec<u8> = match dice.below(8) {
            0 => bytes[at..end].iter().map(|byte| byte ^ 1 << dice.below(8)).take(1).collect(),
            1 => vec![dice.roll() as u8],
            2 => words[dice.below(words.len())].into(),
            // Numbers at the edges, in the widths that readers use.
            3 => {
                let edge = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX / 2, u64::MAX];
                edge[dice.below(edge.len())].to_le_bytes()[..[1, 2, 4, 8][dice.below(4)]].into()
            }
            // A part of another input, or of this one.
            4 => {
                let from = dice.below(other.len());
                other[from..(from + 1 + dice.below(64)).min(other.len())].into()
            }
            5 => bytes[at..end].into(),
            // Nothing: what was there goes.
            6 => Vec::new(),
            // A number in text becomes another.
            _ => {
                let digits: Vec<usize> = (0..bytes.len()).filter(|n| bytes[*n].is_ascii_digit()).collect();
                let Some(from) = digits.get(dice.below(digits.len())).copied().filter(|_| resize) else { continue };
                let until = (from..bytes.len()).find(|n| !bytes[*n].is_ascii_digit()).unwrap_or(bytes.len());
                let number = (dice.roll() >> dice.below(64)).to_string();
                bytes.splice(from..until, number.bytes());
                continue;
            }
        };
        // In the place of as many bytes, of others, or of none.
        let until = match (resize, dice.below(3)) {
            (false, _) | (true, 0) => (at + put.len()).min(bytes.len()),
            (true, 1) => end,
            (true, _) => at,
        };
        let put = if resize { &put[..] } else { &put[..until - at] };
        bytes.splice(at..until, put.iter().copied());
    }
    bytes.truncate(LONGEST);
    bytes
}

/// What an input led to, without its names and numbers: new words are a new way through the reader.
fn way(outcome: &Result<(), String>) -> String {
    match outcome {
        Ok(()) => "read".into(),
        Err(words) => words.split_whitespace().filter(|w| w.chars().all(|c| c.is_ascii_lowercase())).collect(),
    }
}

/// Where the input that is being read lies, should the process die of it.
fn last(reader: &Reader) -> Utf8PathBuf {
    let folder = Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap().join("vidtui-fuzz");
    fs::create_dir_all(&folder).unwrap();
    folder.join(reader.name)
}

/// Runs one reader until the time is over; returns how many inputs it read, and in how many ways.
fn fuzz(reader: &Reader, time: Duration, seed: u64) -> (u64, usize) {
    let (_keep, folder) = temp();
    let mut queue = reader.prepare(&folder);
    queue.extend(corpus::inputs(reader.name).into_values());
    queue.iter_mut().for_each(|input| input.truncate(LONGEST));
    let (mut dice, mut seen, mut count) = (Dice(seed), HashSet::new(), 0);
    let place = last(reader);
    let began = Instant::now();
    let now = Mutex::new(Some(Instant::now()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                // The lock is not held while this sleeps.
                let reading = *now.lock().unwrap();
                let Some(started) = reading else { break };
                if started.elapsed() > PATIENCE {
                    eprintln!("{}: {place} takes longer than {PATIENCE:?}", reader.name);
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        while began.elapsed() < time {
            let (one, other) = (dice.below(queue.len()), dice.below(queue.len()));
            let input = mutated(&mut dice, &reader.built, &queue[one], &queue[other]);
            fs::write(&place, &input).unwrap();
            *now.lock().unwrap() = Some(Instant::now());
            let outcome = catch_unwind(AssertUnwindSafe(|| reader.on(&folder, &input)));
            let Ok(outcome) = outcome else {
                // The watching thread must end before the panic can leave this scope.
                *now.lock().unwrap() = None;
                panic!("{} panics on {place}", reader.name);
            };
            count += 1;
            if seen.insert(way(&outcome)) && queue.len() < LONGEST_QUEUE {
                queue.push(input);
            }
        }
        *now.lock().unwrap() = None;
    });
    (count, seen.len())
}

/// Run by `cargo xtask fuzz`, with `VIDTUI_FUZZ_S` seconds for each reader, or for the one in `VIDTUI_FUZZ`; does nothing
/// among the other tests, which would get its limit of memory.
#[test]
fn readers_survive_whatever_they_are_given() {
    let Ok(seconds) = std::env::var("VIDTUI_FUZZ_S") else { return };
    let seconds = seconds.parse().unwrap();
    setrlimit(Resource::RLIMIT_AS, MEMORY, MEMORY).unwrap();
    let only = std::env::var("VIDTUI_FUZZ").ok();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for reader in READERS.iter().filter(|reader| only.as_ref().is_none_or(|name| name == reader.name)) {
        let (count, ways) = fuzz(reader, Duration::from_secs_f64(seconds), seed);
        println!("{:<12} {count:>9} inputs, {ways} ways through it", reader.name);
    }
}

#[test]
fn every_reader_reads_what_is_good_and_survives_a_little_of_what_is_not() {
    let mut ways = BTreeMap::new();
    for reader in &READERS {
        let (_keep, folder) = temp();
        let good = reader.prepare(&folder);
        for input in &good {
            reader.on(&folder, input).unwrap_or_else(|why| panic!("{}: {why}", reader.name));
        }
        let mut dice = Dice(1);
        for _ in 0..100 {
            let input = mutated(&mut dice, &reader.built, &good[0], &good[good.len() - 1]);
            ways.entry(reader.name).or_insert_with(HashSet::new).insert(way(&reader.on(&folder, &input)));
        }
    }
    let dull: Vec<_> = ways.iter().filter(|(_, ways)| ways.len() < 2).collect();
    assert!(dull.is_empty(), "{dull:?}");
}
