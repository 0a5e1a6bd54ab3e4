//! The readers that are fuzzed. Each takes any bytes, and may refuse them, but must not panic, hang or take memory without bound.

use std::fs;
use std::sync::{LazyLock, Once};

use camino::{Utf8Path, Utf8PathBuf};
use cluster::nvidia_smi::GpuQuery;
use cluster::slurm::{SlurmSpec, parse_error, read_accounting, read_job, read_nodes, read_queue, read_submitted};
use cluster::{Hostfile, hostlist};
use dataset::{SourceRequest, read_source};
use recipe::{Prompt, prompt_lines};

/// A folder in memory for the files that readers open. Each process has its own.
static FOLDER: LazyLock<Utf8PathBuf> = LazyLock::new(|| {
    let memory = Utf8Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { Utf8PathBuf::try_from(std::env::temp_dir()).unwrap() };
    let folder = parent.join(format!("vidtui-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
});

/// Writes the input to a file of this name.
fn file(name: &str, input: &[u8]) -> Utf8PathBuf {
    let path = FOLDER.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, input).unwrap();
    path
}

/// Reads the header and values of a safetensors file.
pub fn safetensors(input: &[u8]) {
    let _ = weights::inspect(&file("a.safetensors", input), true);
}

/// Reads a file of `torch.save`: its archive, its pickle and its tensors.
pub fn pickle(input: &[u8]) {
    let _ = weights::inspect(&file("a.pt", input), true);
}

/// Reads the metadata of a distributed checkpoint of PyTorch.
pub fn dcp(input: &[u8]) {
    let metadata = file("dcp/.metadata", input);
    file("dcp/__0_0.distcp", &[0; 64]);
    let _ = weights::inspect(metadata.parent().unwrap(), false);
}

fn listing(table: Utf8PathBuf) {
    let request = SourceRequest { source: table, ..SourceRequest::default() };
    let _ = read_source(&request);
}

/// Reads a table of clips in Parquet. The reader catches panics of its library, which the hook of the fuzzer would make the end.
pub fn parquet(input: &[u8]) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let abort = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| if !failure::is_panic_caught() { abort(panic) }));
    });
    listing(file("clips.parquet", input));
}

/// Reads a table of clips. The first byte chooses CSV (`0`), TSV (`1`), JSON (`2`) or JSON lines (`3`).
pub fn table(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let name = ["clips.csv", "clips.tsv", "clips.json", "clips.jsonl"][usize::from(kind % 4)];
    listing(file(name, rest));
}

/// Reads the index of a data set.
pub fn index(input: &[u8]) {
    let path = file("data/index.jsonl", input);
    let _ = dataset::store::read_index(path.parent().unwrap(), |_, _| Ok(()));
}

/// Reads a hostfile, and its lines as lists of nodes.
pub fn hostfile(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let _ = Hostfile::parse(&text);
    text.lines().for_each(|line| drop(hostlist::expand(line)));
}

/// Reads the rows and messages of nvidia-smi.
pub fn nvidia_smi(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for query in [GpuQuery::default(), GpuQuery::of_use()] {
        let _ = query.read(&text, None, 0.0);
    }
}

/// Reads answers of squeue, sacct, scontrol, sinfo and sbatch, and a Slurm file.
pub fn slurm(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let _ = (read_queue(&text), read_accounting(&text), read_job(&text), read_nodes(&text));
    let _ = (read_submitted(&text), parse_error(&text), SlurmSpec::parse(&text));
}

/// Reads a file of events of TensorBoard.
pub fn tensorboard(input: &[u8]) {
    let _ = interop::tensorboard::read_files(&[file("events.out.tfevents.0", input)]);
}

/// Reads the file of an offline run of W&B.
pub fn wandb(input: &[u8]) {
    let _ = interop::wandb::read_file(&file("run-a.wandb", input));
}

/// Reads a file of prompts with flags.
pub fn prompts(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    prompt_lines(&text).for_each(|(_, line)| drop(Prompt::parse(line)));
}

/// Reads a recipe, and computes its cost and memory.
pub fn recipe(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(resolved) = recipe::load_text(&FOLDER.join("recipe.toml"), &text, &[]) else { return };
    let _ = (resolved.show(true), resolved.recipe.peak_memory(), resolved.recipe.cost());
}
