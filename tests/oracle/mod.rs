//! Locates the recorded numbers of reference implementations: the project's fixtures, or the folder in `VIDTUI_ORACLE`.
//!
//! Each crate that is compared with these numbers compiles this file into its tests.

#![allow(dead_code, reason = "no crate needs all of it")]

use camino::{Utf8Path, Utf8PathBuf};

/// The environment variable that names another folder of recorded numbers.
pub const VARIABLE: &str = "VIDTUI_ORACLE";

/// The subfolders of such a folder. It has at least one of them.
const KINDS: [&str; 16] = [
    "cogvideox",
    "cogvideox15",
    "flux",
    "i2v",
    "i2v_training",
    "lora",
    "opensora",
    "opensora_encoders",
    "optim",
    "rotary",
    "sampling",
    "schedules",
    "t5",
    "ttt",
    "vae",
    "wan",
];

/// Returns the folder of recorded numbers.
///
/// # Panics
/// If the variable does not name such a folder: a test that compares nothing must not pass.
pub fn root() -> Utf8PathBuf {
    let workspace = Utf8Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let here = std::env::current_dir().expect("tests run somewhere");
    let here = Utf8PathBuf::try_from(here).expect("the project's path is UTF-8");
    match std::env::var(VARIABLE) {
        Ok(named) => find(&named, &[&here, workspace]).unwrap_or_else(|why| panic!("{why}")),
        Err(std::env::VarError::NotPresent) => workspace.join("tests/fixtures/oracle"),
        Err(error) => panic!("{VARIABLE}: {error}"),
    }
}

/// Returns the folder `named`, which may be relative to one of `bases`.
pub fn find(named: &str, bases: &[&Utf8Path]) -> Result<Utf8PathBuf, String> {
    if named.is_empty() {
        return Err(format!("{VARIABLE} is empty: set it to a folder, or unset it"));
    }
    // `join` returns an absolute path unchanged.
    let mut tried: Vec<Utf8PathBuf> = bases.iter().map(|base| base.join(named)).collect();
    tried.dedup();
    let fits = |folder: &&Utf8PathBuf| KINDS.iter().any(|kind| folder.join(kind).is_dir());
    tried.iter().find(fits).cloned().ok_or_else(|| {
        let tried = tried.iter().map(|path| path.as_str()).collect::<Vec<_>>().join(", ");
        format!("{VARIABLE} is {named}, and none of these folders contains {}: {tried}", KINDS.join(" or "))
    })
}

/// Returns the entries of the folder `below` of the oracle that `wanted` accepts, and prints a line if there are none.
pub fn entries(below: &str, kind: &str, wanted: impl Fn(&Utf8Path) -> bool) -> Vec<Utf8PathBuf> {
    let folder = root().join(below);
    let found = listed(&folder, wanted);
    if found.is_empty() {
        println!("skipped: no {kind} in {folder}");
    }
    found
}

/// Returns the entries of a folder that `wanted` accepts, in the order of their names. A missing folder is empty.
fn listed(folder: &Utf8Path, wanted: impl Fn(&Utf8Path) -> bool) -> Vec<Utf8PathBuf> {
    let mut found: Vec<Utf8PathBuf> = match folder.read_dir_utf8() {
        Ok(entries) => entries.map(|entry| entry.unwrap_or_else(|e| panic!("{folder}: {e}")).into_path()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("{folder}: {error}"),
    };
    found.retain(|path| wanted(path));
    found.sort();
    found
}

/// Returns the files `START*.safetensors` of TTT layers.
pub fn ttt_files(start: &str) -> Vec<Utf8PathBuf> {
    entries("ttt", &format!("{start}*.safetensors"), |path| {
        path.extension() == Some("safetensors") && path.file_name().is_some_and(|name| name.starts_with(start))
    })
}

/// Returns the folders of diffusers models.
pub fn models() -> Vec<Utf8PathBuf> {
    entries("cogvideox", "*/transformer/config.json", |folder| folder.join("transformer/config.json").is_file())
}

/// Returns the file with a model's recorded pass.
pub fn pass(model: &Utf8Path) -> Utf8PathBuf {
    model.join("forward_backward.safetensors")
}

/// Returns the diffusers models with a recorded forward and backward pass, and prints a line if there are none.
pub fn passes() -> Vec<Utf8PathBuf> {
    let root = root();
    let has = |folder: &Utf8Path| folder.join("transformer/config.json").is_file() && pass(folder).is_file();
    // The recordings of the image-to-video pipelines have passes of their models too.
    let found: Vec<_> = ["cogvideox", "i2v"].iter().flat_map(|below| listed(&root.join(below), has)).collect();
    if found.is_empty() {
        println!("skipped: no forward_backward.safetensors beside a transformer/ in {root}/{{cogvideox,i2v}}/*");
    }
    found
}

/// Returns the files with the weights of a diffusers model, as diffusers chooses them: those in the index, or the only
/// file. Variants such as `.fp16.` are ignored.
pub fn weight_files(transformer: &Utf8Path) -> Vec<Utf8PathBuf> {
    let whole = transformer.join("diffusion_pytorch_model.safetensors");
    let index = Utf8PathBuf::from(format!("{whole}.index.json"));
    if !index.is_file() {
        return vec![whole];
    }
    let text = std::fs::read(&index).unwrap_or_else(|e| panic!("{index}: {e}"));
    let index: serde_json::Value = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{index}: {e}"));
    let map = index["weight_map"].as_object().expect("an index maps weights to files");
    let files: std::collections::BTreeSet<&str> = map.values().filter_map(|file| file.as_str()).collect();
    files.into_iter().map(|file| transformer.join(file)).collect()
}

/// Returns the Python of the benches with torch, diffusers and the packages of a marker: `complete`, or `complete-lora` for
/// peft and transformers. Returns `None` if it is not installed.
pub fn python(marker: &str) -> Option<Utf8PathBuf> {
    let absolute = |name| std::env::var(name).ok().map(Utf8PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    let folder = cache.join("vidtui/bench-python");
    let found = folder.join("complete").exists() && folder.join(marker).exists();
    if !found {
        println!("skipped: there is no Python with diffusers (`cargo xtask ci` and `cargo xtask bench` install one)");
    }
    found.then(|| folder.join("bin/python"))
}
