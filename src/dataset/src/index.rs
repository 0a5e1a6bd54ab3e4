//! The index of a data set that has separate files for each clip, unlike a store with its shards. Reads the index and checks that the
//! files of each sample fit a model.
//!
//! One JSON object per line, with paths relative to the folder of the index:
//! `{"vid_emb": "000.latent.safetensors", "text_chunk_emb": ["000.text.safetensors"], "caption": "…"}`

use crate::open::Latents;
use crate::table::{DatasetInfo, Located, Table};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Model;
use rundir::{ErrorCode, Failure, read_named, xxh3_hex};
use serde::Deserialize;
use std::io;
use weights::{Dtype, Error, Header, TensorInfo, is_torch_file};

/// The largest index: 4 GiB, or 10 million samples.
const MAX_INDEX: u64 = 4 << 30;
/// The name of the tensor in a latent file: `[T, C, H, W]`.
pub const LATENT: &str = "latent";
/// The name of the tensor that a latent file may have instead of [`LATENT`], `[T, 2C, H, W]`: means, then log-variances. Training
/// draws a new latent from them at each read.
pub const MOMENTS: &str = "moments";
/// The name of the tensor in a text file: `[text_len, text_dim]`.
pub const TEXT: &str = "text";

/// The element types a dataset may have.
pub(crate) const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// The samples of a dataset, in the order of the index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// The index file.
    pub path: Utf8PathBuf,
    /// The samples, one per line; at least one.
    pub samples: Vec<TrainingSample>,
}

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingSample {
    /// The line in the index file, counted from 1.
    pub line: usize,
    /// The file with [`LATENT`].
    pub latent: Utf8PathBuf,
    /// The files with [`TEXT`]. Their tokens are concatenated in this order.
    pub text: Vec<Utf8PathBuf>,
    /// The caption, for people.
    pub caption: String,
}

#[derive(Deserialize)]
struct RawSample {
    vid_emb: Utf8PathBuf,
    text_chunk_emb: Vec<Utf8PathBuf>,
    #[serde(default)]
    caption: String,
}

/// Opens the file of the text that replaces dropped texts (`data.null_text`), and checks the shape of the text.
///
/// # Errors
/// The file cannot be read, or its text has another shape than a text of `model`.
pub fn open_null_text(path: &Utf8Path, model: &Model) -> Result<Header, Failure> {
    let header = Header::read(path)?;
    let found = &header.tensor(TEXT)?.shape;
    if *found != [model.text_len, model.text_dim] {
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            format!("cannot use {path} as the text that replaces dropped texts"),
            format!("it holds {found:?}, the recipe expects [{}, {}]", model.text_len, model.text_dim),
            "encode the empty caption as the texts of the data set were encoded, or remove data.null_text from the recipe",
        ));
    }
    Ok(header)
}

impl Index {
    /// Reads an index file. [`Index::check`] reads the files that it names.
    ///
    /// # Errors
    /// The file cannot be read or has no samples, or a line is not a sample; the failure names the first such line.
    pub fn open(path: &Utf8Path) -> Result<Self, Failure> {
        Self::open_in(path, path.parent().unwrap_or(Utf8Path::new("")))
    }

    /// Reads an index file as [`Index::open`] does, with paths relative to the folder `root`.
    pub(crate) fn open_in(path: &Utf8Path, folder: &Utf8Path) -> Result<Self, Failure> {
        let bytes = read_named(path, MAX_INDEX).map_err(|e| unreadable(path, &e))?;
        let text = text_file::decode(bytes).map_err(|not| rundir::Error::not_text(path, not))?;
        let mut samples = Vec::new();
        for (n, line) in text.split('\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let raw: RawSample = serde_json::from_str(line).map_err(|e| bad_line(path, n + 1, &e))?;
            if raw.text_chunk_emb.is_empty() {
                return Err(Failure::new(
                    ErrorCode::InvalidDataset,
                    format!("line {} of {path} has no text", n + 1),
                    "text_chunk_emb is an empty list",
                    "name at least one file, also if the text is empty",
                ));
            }
            samples.push(TrainingSample {
                line: n + 1,
                latent: folder.join(raw.vid_emb),
                text: raw.text_chunk_emb.iter().map(|file| folder.join(file)).collect(),
                caption: raw.caption,
            });
        }
        if samples.is_empty() {
            return Err(Failure::new(
                ErrorCode::InvalidDataset,
                format!("dataset {path} is empty"),
                "no line names a sample",
                format!("write one line per sample: {EXAMPLE}"),
            ));
        }
        Ok(Self { path: path.to_owned(), samples })
    }

    /// Checks that every file exists, is complete, and has the shape and type that `model` expects. Reads headers only.
    ///
    /// # Errors
    /// A sample does not fit; the failure names its line, the file, and the found and expected values.
    pub fn check(&self, model: &Model) -> Result<DatasetInfo, Failure> {
        Ok(self.table_of(Latents { model, any: None })?.info)
    }

    /// Checks as [`Index::check`] does, and returns the location of each tensor.
    pub(crate) fn table_of(&self, latents: Latents<'_>) -> Result<Table, Failure> {
        let model = latents.model;
        let mut identity = String::new();
        let folder = self.path.parent().unwrap_or(Utf8Path::new(""));
        let mut table = Table::new(&self.path, model.segments());
        for sample in &self.samples {
            let tensors = self.locate(sample, latents)?;
            for tensor in &tensors {
                let name = tensor.path.strip_prefix(folder).unwrap_or(&tensor.path);
                identity += &format!("{name}\n{}\n", tensor.bytes);
                table.info.bytes = table.info.bytes.saturating_add(tensor.bytes);
            }
            table.push(&tensors);
        }
        table.info.samples = self.samples.len();
        table.info.fingerprint = xxh3_hex(identity.as_bytes());
        Ok(table)
    }

    /// Checks a sample and returns its tensors, the latent first.
    fn locate(&self, sample: &TrainingSample, latents: Latents<'_>) -> Result<Vec<Located>, Failure> {
        let model = latents.model;
        let header = self.header(sample, &sample.latent)?;
        let name = if header.tensors.contains_key(MOMENTS) { MOMENTS } else { LATENT };
        let latent = self.tensor(sample, &header, name)?;
        latents.check(|what| self.what(sample, what), sample.latent.as_str(), &latent.shape, name == MOMENTS)?;
        let mut located = vec![Located::of(&header, latent, name == MOMENTS)];
        if sample.text.len() != model.segments() {
            return Err(wrong_count(
                self.what(sample, "has texts for another number of segments"),
                sample.text.len(),
                model,
            ));
        }
        for file in &sample.text {
            let header = self.header(sample, file)?;
            let text = self.tensor(sample, &header, TEXT)?;
            check_text(|what| self.what(sample, what), file.as_str(), &text.shape, model)?;
            located.push(Located::of(&header, text, false));
        }
        Ok(located)
    }

    fn header(&self, sample: &TrainingSample, file: &Utf8Path) -> Result<Header, Failure> {
        Header::read(file).map_err(|error| {
            if is_torch_file(file) {
                return Failure::new(
                    ErrorCode::InvalidDataset,
                    self.what(sample, "cannot be used as it is"),
                    format!("{file} is a file of torch.save, and training reads safetensors files"),
                    format!("import the dataset once: `vidtui data import {} NEW_FOLDER`", self.path),
                );
            }
            self.broken(sample, error)
        })
    }

    fn tensor<'a>(&self, sample: &TrainingSample, header: &'a Header, name: &str) -> Result<&'a TensorInfo, Failure> {
        let info = header.tensor(name).map_err(|error| self.broken(sample, error))?;
        if !DTYPES.contains(&info.dtype) {
            return Err(Failure::new(
                ErrorCode::InvalidDataset,
                self.what(sample, &format!("has a {name} of the wrong type")),
                format!("{} holds {}, expected F32, F16 or BF16", header.path, info.dtype),
                "write it as one of those",
            ));
        }
        Ok(info)
    }

    fn broken(&self, sample: &TrainingSample, error: Error) -> Failure {
        let Failure { code, what, why, fix, .. } = error.into();
        Failure::new(code, self.what(sample, "cannot be used"), format!("{what}: {why}"), fix)
    }

    pub(crate) fn what(&self, sample: &TrainingSample, what: &str) -> String {
        format!("line {} of {} {what}", sample.line, self.path)
    }
}

/// Returns the failure for a sample whose number of texts differs from the model's number of segments.
pub(crate) fn wrong_count(what: String, texts: usize, model: &Model) -> Failure {
    Failure::new(
        ErrorCode::InvalidDataset,
        what,
        format!(
            "it has {}, the recipe has {}",
            units::counted(texts, "text"),
            units::counted(model.segments(), "segment")
        ),
        "give one text per segment, or set model.segments",
    )
}

/// Checks the shape of a text. `holder` names its file or tensor in a failure; `what` puts the place in front of a failure's first
/// words.
pub(crate) fn check_text(
    what: impl Fn(&str) -> String,
    holder: &str,
    found: &[usize],
    model: &Model,
) -> Result<(), Failure> {
    let refuse = |what: String, why, fix: String| Err(Failure::new(ErrorCode::InvalidDataset, what, why, fix));
    match found[..] {
        [len, dim] if dim == model.text_dim && len == model.text_len => Ok(()),
        [len, dim] if dim == model.text_dim => refuse(
            what("has a text of the wrong length"),
            format!("{holder} has {len} tokens, the recipe expects {}", model.text_len),
            format!("set model.text_len = {len}, or encode the text again"),
        ),
        _ => refuse(
            what("has a text of the wrong shape"),
            format!("{holder} has shape {found:?}, the recipe expects [tokens, {}]", model.text_dim),
            "set model.text_dim to the width of the text encoder, or encode the text again".into(),
        ),
    }
}

const EXAMPLE: &str = r#"{"vid_emb": "000.latent.safetensors", "text_chunk_emb": ["000.text.safetensors"]}"#;

fn unreadable(path: &Utf8Path, error: &io::Error) -> Failure {
    let fix = match error.kind() {
        io::ErrorKind::NotFound => {
            "set data.index to a data set, or make one: vidtui data encode MANIFEST --model FOLDER --out DATA".into()
        }
        _ => format!("check what {path} is and its permissions: ls -ld {path}"),
    };
    let why = match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".into(),
        _ => error.to_string(),
    };
    Failure::new(ErrorCode::InvalidDataset, format!("cannot read dataset {path}"), why, fix)
}

fn bad_line(path: &Utf8Path, line: usize, error: &serde_json::Error) -> Failure {
    let what = if error.is_data() { "does not name a sample" } else { "is not JSON" };
    // Each line is parsed on its own, so the parser's own line number is always 1 and would mislead.
    let why = error.to_string().replace(" at line 1 column ", " at column ");
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("line {line} of {path} {what}"),
        why,
        format!("write it like this: {EXAMPLE}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use weights::fixtures::{shown, temp, write};

    /// A model with latents `[3, 16, 8, 8]` and texts of 16 tokens of width 32.
    fn model() -> Model {
        let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        recipe::load(minimal.into(), &["model.text_dim=32".into()]).unwrap().recipe.model
    }

    const LATENT_SHAPE: &[usize] = &[3, 16, 8, 8];

    /// Two samples that fit the model.
    fn dataset(folder: &Utf8Path) -> Utf8PathBuf {
        write(&folder.join("0.latent"), &[(LATENT, Dtype::F32, LATENT_SHAPE)]);
        write(&folder.join("1.latent"), &[(LATENT, Dtype::BF16, LATENT_SHAPE)]);
        write(&folder.join("0.text"), &[(TEXT, Dtype::F16, &[16, 32])]);
        write(&folder.join("1.text"), &[(TEXT, Dtype::F32, &[16, 32])]);
        let index = folder.join("index.jsonl");
        let lines = concat!(
            "{\"vid_emb\": \"0.latent\", \"text_chunk_emb\": [\"0.text\"], \"caption\": \"a rabbit\", \"fps\": 24}\n",
            "\n",
            "{\"vid_emb\": \"1.latent\", \"text_chunk_emb\": [\"1.text\"]}",
        );
        fs::write(&index, lines).unwrap();
        index
    }

    /// Damages a valid data set; returns the code of the failure, and its text for a snapshot.
    fn wrong(harm: impl FnOnce(&Utf8Path)) -> (ErrorCode, String) {
        let (_keep, folder) = temp();
        let index = dataset(&folder);
        harm(&folder);
        let failure = Index::open(&index).and_then(|index| index.check(&model())).unwrap_err();
        (failure.code, shown(&failure, &folder))
    }

    #[test]
    fn a_dataset_that_fits_is_counted_and_identified() {
        let (_keep, folder) = temp();
        let index = Index::open(&dataset(&folder)).unwrap();
        assert_eq!((index.samples[0].line, index.samples[1].line), (1, 3));
        assert_eq!(index.samples[0].caption, "a rabbit");
        assert_eq!(index.samples[1].text, [folder.join("1.text")]);
        let info = index.check(&model()).unwrap();
        let sizes = ["0.latent", "0.text", "1.latent", "1.text"].map(|f| fs::metadata(folder.join(f)).unwrap().len());
        assert_eq!((info.samples, info.bytes), (2, sizes.iter().sum()));
    }

    #[test]
    fn a_moved_dataset_is_the_same_and_another_one_is_not() {
        let fingerprint = |change: fn(&Utf8Path)| {
            let (_keep, folder) = temp();
            let index = dataset(&folder);
            change(&folder);
            Index::open(&index).unwrap().check(&model()).unwrap().fingerprint
        };
        let first = fingerprint(|_| {});
        assert_eq!(fingerprint(|_| {}), first);
        let fewer = fingerprint(|folder| {
            let text = fs::read_to_string(folder.join("index.jsonl")).unwrap();
            fs::write(folder.join("index.jsonl"), text.lines().next().unwrap()).unwrap();
        });
        assert_ne!(fewer, first);
        let other_type = fingerprint(|folder| write(&folder.join("0.latent"), &[(LATENT, Dtype::F16, LATENT_SHAPE)]));
        assert_ne!(other_type, first);
    }

    #[test]
    fn a_missing_or_empty_index_is_reported_with_its_remedy() {
        let missing = Index::open("/no/such/index.jsonl".into()).unwrap_err();
        assert_eq!(missing.code, ErrorCode::InvalidDataset);
        let empty = ["", "\n \n"].map(|text| wrong(|folder| fs::write(folder.join("index.jsonl"), text).unwrap()));
        assert_eq!(empty[0], empty[1]);
        assert_eq!(empty[0].0, ErrorCode::InvalidDataset);
        insta::assert_snapshot!(format!("{missing}\n\n{}", empty[0].1));
    }

    #[test]
    fn a_line_that_is_not_a_sample_is_named() {
        let line = |text: &str| {
            wrong(|folder| {
                let first = r#"{"vid_emb": "0.latent", "text_chunk_emb": ["0.text"]}"#;
                fs::write(folder.join("index.jsonl"), format!("{first}\n{text}\n")).unwrap();
            })
        };
        let torn = line(r#"{"vid_emb": "0.la"#);
        let other = line(r#"{"video": "0.latent"}"#);
        let no_text = line(r#"{"vid_emb": "0.latent", "text_chunk_emb": []}"#);
        assert_eq!([torn.0, other.0, no_text.0], [ErrorCode::InvalidDataset; 3]);
        insta::assert_snapshot!([torn.1, other.1, no_text.1].join("\n\n"));
    }

    #[test]
    fn a_missing_or_truncated_file_is_named_with_its_line() {
        let missing = wrong(|folder| fs::remove_file(folder.join("1.text")).unwrap());
        let truncated = wrong(|folder| {
            let file = fs::OpenOptions::new().write(true).open(folder.join("1.latent")).unwrap();
            file.set_len(1000).unwrap();
        });
        assert_eq!([missing.0, truncated.0], [ErrorCode::NotFound, ErrorCode::Malformed]);
        insta::assert_snapshot!([missing.1, truncated.1].join("\n\n"));
    }

    #[test]
    fn a_tensor_of_another_shape_or_type_is_shown_with_the_keys_to_set() {
        let with = |file: &'static str, name: &'static str, dtype, shape: &'static [usize]| {
            wrong(move |folder| write(&folder.join(file), &[(name, dtype, shape)]))
        };
        let failures = [
            with("1.latent", LATENT, Dtype::F32, &[5, 16, 8, 12]),
            with("1.latent", LATENT, Dtype::F32, &[1, 3, 16, 8, 8]),
            with("0.text", TEXT, Dtype::F32, &[16, 64]),
            with("1.text", TEXT, Dtype::F32, &[17, 32]),
            with("0.latent", LATENT, Dtype::F64, LATENT_SHAPE),
            with("0.latent", "z", Dtype::F32, LATENT_SHAPE),
        ];
        let codes = failures.each_ref().map(|failure| failure.0);
        assert_eq!(codes[..5], [ErrorCode::InvalidDataset; 5]);
        assert_eq!(codes[5], ErrorCode::TensorMismatch);
        insta::assert_snapshot!(failures.map(|failure| failure.1).join("\n\n"));
    }

    #[test]
    fn every_segment_needs_its_own_text() {
        let (_keep, folder) = temp();
        let index = Index::open(&dataset(&folder)).unwrap();
        let failure = index.check(&model().with_cogvideox(|keys| keys.segments = 2)).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidDataset);
        insta::assert_snapshot!(shown(&failure, &folder));
    }
}
