//! A server that answers as the Hugging Face Hub does, for one folder of files; and the tests of `vidtui fetch` that need a program.

use crate::test_site::{Finish, TestSite, VIDTUI, error_code};
use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

/// The only commit of the model.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves the files of a folder as every model and revision. Returns the URL.
pub fn serve(folder: &Utf8Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, folder) = (format!("http://{}", listener.local_addr().unwrap()), folder.to_owned());
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that disconnects is not a failure of the server.
            let _ = answer(&folder, stream.unwrap());
        }
    });
    url
}

fn answer(folder: &Utf8Path, mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let Some((_, file)) = path.split_once(&format!("/resolve/{COMMIT}/")) else {
        let list = listing(folder);
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len());
    };
    let bytes = fs::read(folder.join(file))?;
    let range =
        head.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok());
    let from: usize = range.unwrap_or(0);
    match range {
        Some(_) => {
            write!(stream, "HTTP/1.1 206 X\r\ncontent-range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len())?
        }
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(stream, "content-length: {}\r\n\r\n", bytes.len() - from)?;
    stream.write_all(&bytes[from..])
}

fn listing(folder: &Utf8Path) -> String {
    let files: Vec<_> = files(folder)
        .iter()
        .map(|path| {
            let bytes = fs::read(path).unwrap();
            let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let name = path.strip_prefix(folder).unwrap();
            serde_json::json!({ "rfilename": name, "lfs": { "sha256": sha256, "size": bytes.len() } })
        })
        .collect();
    serde_json::json!({ "sha": COMMIT, "siblings": files }).to_string()
}

fn files(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let entries = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Makes a site whose Hub has a model of two files, and returns the site and its cache.
fn site() -> (TestSite, Utf8PathBuf) {
    let site = TestSite::new();
    site.write("model/vae/config.json", "{}");
    site.write("model/vae/weights.safetensors", &"0123456789abcdef".repeat(40_000));
    let (url, home) = (serve(&site.root.join("model")), site.root.join("home"));
    let site = site.with("HF_ENDPOINT", &url).with("HF_HOME", home.as_str());
    (site, home.join("hub"))
}

#[test]
fn a_download_of_a_file_that_is_too_large_ends_with_its_code_and_can_continue() {
    let (site, cache) = site();
    let script = format!("ulimit -f 256; exec {VIDTUI} fetch a/b --json");
    let limited = site.program("bash", &["-c", &script]).finish();
    assert_eq!((limited.code, error_code(&limited.stderr).as_str()), (1, "file-too-large"));
    let model = cache.join("models--a--b");
    assert!(!model.join("snapshots").exists(), "no file of a model that is not complete");
    let left = fs::read_dir(model.join("blobs")).unwrap().filter_map(|blob| {
        let blob = blob.unwrap();
        blob.path().extension().is_some_and(|ending| ending == "incomplete").then(|| blob.metadata().unwrap().len())
    });
    assert!(left.sum::<u64>() > 0, "what was downloaded is kept");
    let fetched = site.json(&["fetch", "a/b", "--json"]);
    let file = Utf8Path::new(fetched["folder"].as_str().unwrap()).join("vae/weights.safetensors");
    assert_eq!(fs::read(file).unwrap(), fs::read(site.root.join("model/vae/weights.safetensors")).unwrap());
}

#[test]
fn the_huggingface_hub_of_python_reads_the_cache() {
    let cache = std::env::var("XDG_CACHE_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cache")));
    let python = Utf8PathBuf::from(format!("{}/vidtui/bench-python", cache.unwrap_or_default()));
    if !python.join("complete").exists() {
        eprintln!(
            "skipped: there is no Python with huggingface_hub (`cargo xtask ci` and `cargo xtask bench` install one)"
        );
        return;
    }
    let (site, cache) = site();
    site.succeeds(&["fetch", "a/b"]);
    site.succeeds(&["fetch", "a/b", "--revision", "v1.0", "vae/config.json"]);
    let script = "import sys; from huggingface_hub import snapshot_download as get
for revision in ('main', 'v1.0'): print(get('a/b', revision=revision, cache_dir=sys.argv[1], local_files_only=True))";
    let mut command = Command::new(python.join("bin/python"));
    let read = command.args(["-c", script, cache.as_str()]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let expected = cache.join("models--a--b/snapshots").join(COMMIT);
    assert_eq!(String::from_utf8(read.stdout).unwrap(), format!("{expected}\n{expected}\n"));
}
