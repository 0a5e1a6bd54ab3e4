//! Tests of `vidtui data encode` up to the start of the run.

use crate::test_site::TestSite;
use camino::Utf8Path;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const ENCODE: &str =
    "data encode clips --model model --out encoded --frames 9 --height 64 --width 96 --text-len 6 --dtype float32";

fn words(more: &str) -> Vec<&str> {
    ENCODE.split(' ').chain(more.split_whitespace()).collect()
}

/// Makes a site with a clip in `clips` and encoders in `model`.
fn site() -> TestSite {
    let site = TestSite::new();
    let cache = site.root.join("cache");
    let site = site.with("XDG_CACHE_HOME", cache.as_str());
    site.write("clips/a.txt", "a test pattern");
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=96x64:rate=8", "-frames:v", "16"]);
    assert!(ffmpeg.arg(site.root.join("clips/a.mp4")).status().unwrap().success());
    let oracle = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oracle").canonicalize_utf8();
    let oracle = oracle.unwrap();
    fs::create_dir(site.root.join("model")).unwrap();
    for (part, from) in [
        ("vae", "vae/cogvideox_5b_tiny/vae"),
        ("text_encoder", "t5/t5_v1_1_tiny/text_encoder"),
        ("tokenizer", "t5/t5_v1_1_tiny/tokenizer"),
    ] {
        symlink(oracle.join(from), site.root.join("model").join(part)).unwrap();
    }
    site
}

/// Renews the lease of a data set's folder, as an encode on another machine does, while `work` runs.
fn while_another_encodes<T>(data: &Utf8Path, work: impl FnOnce() -> T) -> T {
    let (stop, folder) = (AtomicBool::new(false), data.join("work"));
    fs::create_dir_all(&folder).unwrap();
    let beat = |beat: usize| {
        let holder = r#"{\"run\":\"other-run\",\"node\":\"node07\",\"pid\":7}"#;
        let text = format!(r#"{{"holder":"{holder}","beat":{beat},"released":false}}"#);
        fs::write(folder.join("folder.0"), text).unwrap();
    };
    beat(0);
    /// Ends the heartbeats, also after a failed assertion.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                beat(number);
                thread::sleep(Duration::from_millis(100));
            }
        });
        let _end = End(&stop);
        work()
    })
}

#[test]
fn encoders_of_another_model_than_that_of_the_recipe_are_refused_before_anything_is_written() {
    let site = site();
    let recipe = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/cogvideox/5b.toml");
    let words = ["data", "encode", "clips", "--model", "model", "--out", "encoded", "--for", recipe.as_str()];
    assert_eq!(site.error(&words), (1, "tensor-mismatch".to_owned()));
    assert!(!site.root.join("encoded").exists() && site.runs().is_empty());
}

#[test]
fn an_encode_without_ffmpeg_is_refused_before_it_starts() {
    let site = site().with("VIDTUI_FFMPEG", "/nonesuch/ffmpeg");
    assert_eq!(site.error(&words("--local 1")), (1, "program-missing".to_owned()));
    assert!(site.runs().is_empty());
    let checked = site.vidtui(&["check", "encoded/encode.toml", "--local", "1", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    let check = document["checks"].as_array().unwrap().iter().find(|check| check["id"] == "ffmpeg").unwrap();
    assert_eq!((&check["result"], &check["failure"]["code"]), (&"bad".into(), &"program-missing".into()));
    let site = site.with("VIDTUI_FFMPEG", "");
    site.succeeds(&words("--local 1 --dry-run"));
}

#[test]
fn an_encode_into_the_folder_of_a_live_encode_is_refused_before_anything_is_written() {
    let site = site();
    let data = site.root.join("encoded");
    let in_use = (1, "already-exists".to_owned());
    while_another_encodes(&data, || {
        assert_eq!(site.error(&words("--local 1")), in_use);
        let left: Vec<_> = data.read_dir_utf8().unwrap().map(|entry| entry.unwrap().file_name().to_owned()).collect();
        assert_eq!(left, ["work"]);
    });
    fs::remove_dir_all(&data).unwrap();
    site.succeeds(&words("--local 1 --dry-run"));
    while_another_encodes(&data, || {
        assert_eq!(site.error(&["launch", "encoded/encode.toml", "--local", "1"]), in_use);
        let checked = site.vidtui(&["check", "encoded/encode.toml", "--local", "1", "--json"]);
        let document: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
        let check = document["checks"].as_array().unwrap().iter().find(|check| check["id"] == "data").unwrap();
        assert_eq!((&check["result"], &check["failure"]["code"]), (&"bad".into(), &"already-exists".into()));
    });
    assert!(site.runs().is_empty());
}

#[test]
fn an_encode_is_refused_while_another_command_prepares_one_in_the_folder() {
    let site = site();
    let data = site.root.join("encoded");
    fs::create_dir(&data).unwrap();
    let other = fs::File::open(&data).unwrap();
    other.lock().unwrap();
    assert_eq!(site.error(&words("--local 1 --dry-run")), (1, "already-exists".to_owned()));
    assert_eq!(data.read_dir_utf8().unwrap().count(), 0);
    drop(other);
    site.succeeds(&words("--local 1 --dry-run --max-dropped 100%"));
}

#[test]
fn options_for_listing_videos_are_refused_with_a_manifest() {
    let site = site();
    site.succeeds(&["data", "check", "clips", "--out", "clips.jsonl"]);
    let encode = ENCODE.replace("encode clips", "encode clips.jsonl");
    let words: Vec<&str> = encode.split(' ').chain(["--layout", "pairs", "--dry-run"]).collect();
    assert_eq!(site.error(&words), (2, "invalid-argument".into()));
}

#[test]
fn a_setting_that_replaces_the_manifest_or_the_folder_of_the_arguments_is_refused() {
    let site = site();
    site.write("mine.jsonl", "kept");
    for set in ["encode.manifest=mine.jsonl", "encode.out=elsewhere"] {
        assert_eq!(site.error(&words(&format!("--local 1 --dry-run --set {set}"))), (2, "invalid-argument".into()));
    }
    assert_eq!(fs::read_to_string(site.root.join("mine.jsonl")).unwrap(), "kept");
    assert!(!site.root.join("encoded").exists());
}
