//! Tests of the commands about data sets of latents.

use crate::test_site::TestSite;
use camino::Utf8Path;
use std::fs;

/// A recipe that trains on the data sets `first` and `second`.
const RECIPE: &str = r#"base = "short.toml"
name = "sets"

[model]
in_channels = 4
out_channels = 4
text_dim = 6
text_len = 8

[data]
shapes = "grouped"

[[data.sets]]
index = "../../first"

[[data.sets]]
index = "../../second"
"#;

/// Imports a data set into a folder of the site, and adds a shard that its index does not name.
fn import(site: &TestSite, name: &str) {
    let factory = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/dataset/factory");
    site.succeeds(&["data", "import", factory.as_str(), name, "--channels", "4"]);
    let folder = site.root.join(name);
    let files = folder.read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path());
    let shard = files.into_iter().find(|path| path.file_name().unwrap().starts_with("latents")).unwrap();
    fs::copy(shard, unused(site, name)).unwrap();
}

fn unused(site: &TestSite, name: &str) -> camino::Utf8PathBuf {
    site.root.join(name).join("latents-00077.safetensors")
}

#[test]
fn pictures_of_a_clip_need_a_terminal() {
    let site = TestSite::new();
    import(&site, "first");
    let id = site.json(&["data", "show", "first", "0a1b", "--json"])["id"].as_str().unwrap().to_owned();
    let show = ["data", "show", "first", &id, "--picture"];
    let done = site.vidtui(&show);
    assert_eq!(done.code, 2, "{}", done.stderr);
    assert!(done.stderr.contains("not a terminal") && done.stderr.contains("--decode"), "{}", done.stderr);
    assert_eq!(site.vidtui(&["data", "show", "first", "--picture"]).code, 2);
}

#[test]
fn shards_of_each_data_set_of_a_live_run_are_not_removed() {
    let site = TestSite::new();
    for name in ["first", "second", "third"] {
        import(&site, name);
    }
    site.write("configs/small/sets.toml", RECIPE);
    let run = site.succeeds(&["launch", "configs/small/sets.toml"]);
    for name in ["first", "second"] {
        assert_eq!(site.error(&["data", "prune", name]), (1, "run-is-alive".into()), "{name}");
        assert!(unused(&site, name).exists());
    }
    site.succeeds(&["data", "prune", "third"]);
    assert!(!unused(&site, "third").exists());
    site.succeeds(&["data", "prune", "first", "--force"]);
    assert!(!unused(&site, "first").exists());
    site.succeeds(&["stop", run.trim(), "--wait"]);
    let removed = site.json(&["data", "prune", "second", "--json"]);
    assert_eq!(removed["shards"][0]["name"], "latents-00077.safetensors");
    assert!(!unused(&site, "second").exists());
}
