//! Tests of `vidtui data check`, from a folder of videos to a manifest.

use crate::test_site::TestSite;
use camino::Utf8Path;
use std::process::Command;

/// Makes a site with a folder `clips` of two good videos and a caption without a video.
fn site() -> TestSite {
    let site = TestSite::new();
    let cache = site.root.join("cache");
    let site = site.with("XDG_CACHE_HOME", cache.as_str());
    site.write("clips/a.txt", "a ball rolls to the left");
    site.write("clips/b.txt", "a ball rolls to the right");
    for (name, frames) in [("a", "50"), ("b", "12")] {
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25", "-frames:v", frames]);
        assert!(ffmpeg.arg(site.root.join(format!("clips/{name}.mp4"))).status().unwrap().success());
    }
    site
}

#[test]
fn a_folder_of_videos_becomes_a_manifest() {
    let site = site();
    let report = site.json(&["data", "check", "clips", "--out", "clips.jsonl", "--json"]);
    assert_eq!((&report["report"]["layout"], &report["accepted"]), (&"pairs".into(), &true.into()));
    assert_eq!((report["report"]["usable"].as_u64(), report["report"]["cached"].as_u64()), (Some(2), Some(0)));
    let manifest = dataset::ClipManifest::read(&site.root.join("clips.jsonl")).unwrap();
    assert_eq!(manifest.clips[1].caption, "a ball rolls to the right");
    assert_eq!(manifest.clips[1].path, site.root.join("clips/b.mp4"));
    // The second check does not call ffprobe.
    let none = site.with("VIDTUI_FFPROBE", "/nonesuch/ffprobe");
    assert_eq!(none.json(&["data", "check", "clips", "--json"])["report"]["cached"].as_u64(), Some(2));
}

#[test]
fn a_folder_of_frames_per_clip_becomes_a_manifest() {
    let site = TestSite::new();
    let cache = site.root.join("cache");
    let site = site.with("XDG_CACHE_HOME", cache.as_str());
    site.write("clips/a.txt", "a ball rolls to the left");
    std::fs::create_dir(site.root.join("clips/a")).unwrap();
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", "testsrc2=size=64x48:rate=25", "-frames:v", "12"]);
    assert!(ffmpeg.arg(site.root.join("clips/a/%d.png")).status().unwrap().success());
    let check = ["data", "check", "clips", "--frames", "9", "--fps", "8", "--out", "clips.jsonl", "--json"];
    let report = &site.json(&check)["report"];
    assert_eq!((&report["layout"], &report["frame_folders"]), (&"frames".into(), &1.into()));
    let manifest = dataset::ClipManifest::read(&site.root.join("clips.jsonl")).unwrap();
    let clip = &manifest.clips[0];
    assert_eq!((clip.id.as_str(), clip.frames, clip.fps, clip.duration_s), ("a", 12, 8.0, 1.5));
    // 12 frames at 8 per second are as many as 12 frames at 25 per second.
    let many = ["data", "check", "clips", "--frames", "13", "--fps", "25"];
    assert_eq!(site.error(&many), (1, "too-many-dropped".into()));
    site.succeeds(&["data", "check", "clips", "--layout", "frames", "--frames", "9", "--fps", "25"]);
}

#[test]
fn more_dropped_clips_than_accepted_fail_and_the_manifest_lists_them() {
    let site = site();
    let short = ["data", "check", "clips", "--frames", "49", "--fps", "25", "--out", "clips.jsonl"];
    assert_eq!(site.error(&short), (1, "too-many-dropped".into()));
    let manifest = dataset::ClipManifest::read(&site.root.join("clips.jsonl")).unwrap();
    assert!(matches!(
        manifest.clips[1].excluded,
        Some(dataset::ExclusionReason::TooShort { frames: 12, needed: 49, .. })
    ));
    site.succeeds(&[&short[..], &["--max-dropped", "50%"]].concat());
    let shown = site.fails(&["data", "check", "clips", "--frames", "49", "--fps", "25"]);
    assert!(shown.contains("12 of 49 frames") && shown.contains("--max-dropped 50%"), "{shown}");
}

#[test]
fn an_encode_of_a_folder_checks_it_first() {
    let site = site();
    let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/oracle");
    let parts = ["vae/cogvideox_5b_tiny/vae", "t5/t5_v1_1_tiny/text_encoder", "t5/t5_v1_1_tiny/tokenizer"];
    for from in parts.map(|part| fixtures.join(part)) {
        let to = site.root.join("model").join(from.file_name().unwrap());
        std::fs::create_dir_all(&to).unwrap();
        for file in from.read_dir_utf8().unwrap().map(|entry| entry.unwrap()) {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    let sizes =
        ["--frames", "49", "--fps", "25", "--height", "64", "--width", "96", "--text-len", "24", "--local", "1"];
    let encode = |source| [&["data", "encode", source, "--model", "model", "--out", "set"], &sizes[..]].concat();
    assert_eq!(site.error(&encode("clips")), (1, "too-many-dropped".into()));
    let manifest = site.root.join("set/manifest.jsonl");
    assert_eq!(dataset::ClipManifest::read(&manifest).unwrap().excluded().count(), 1);
    assert!(!site.root.join("set/encode.toml").exists());
    for source in ["clips", "set/manifest.jsonl"] {
        site.succeeds(&[&encode(source)[..], &["--max-dropped", "50%", "--dry-run"]].concat());
    }
    assert_eq!(site.error(&encode("nonesuch")), (1, "not-found".into()));
    // The nearest numbers of frames are named before any clip is read.
    let even = ["data", "encode", "clips", "--model", "model", "--out", "even", "--frames", "48"];
    assert_eq!(site.error(&even), (2, "invalid-argument".into()));
    assert!(site.fails(&even).contains("--frames 45 or 49"));
    assert!(!site.root.join("even").exists());
    // 9 frames that are 2 apart need 17; the shorter clip has 12.
    let apart =
        ["data", "encode", "clips", "--model", "model", "--out", "apart", "--dtype", "float32", "--frames", "9"];
    let apart =
        [&apart[..], &["--height", "64", "--width", "96", "--text-len", "24", "--local", "1", "--dry-run"]].concat();
    site.succeeds(&apart);
    for stride in [["--stride", "2"], ["--set", "encode.stride=2"]] {
        let args = [&apart[..], &stride].concat();
        assert_eq!(site.error(&args), (1, "too-many-dropped".into()), "{stride:?}");
        let manifest = dataset::ClipManifest::read(&site.root.join("apart/manifest.jsonl")).unwrap();
        let reason = manifest.clips[1].excluded.as_ref();
        assert!(
            matches!(reason, Some(dataset::ExclusionReason::TooShort { frames: 12, needed: 17, .. })),
            "{reason:?}"
        );
        site.succeeds(&[&args[..], &["--max-dropped", "50%"]].concat());
    }
    let recipe = recipe::load(&site.root.join("apart/encode.toml"), &[]).unwrap().recipe;
    assert_eq!(recipe.encode.stride, 1, "a flag of --set is not written");
    site.succeeds(&[&apart[..], &["--stride", "2", "--max-dropped", "50%"]].concat());
    let recipe = recipe::load(&site.root.join("apart/encode.toml"), &[]).unwrap().recipe;
    assert_eq!(recipe.encode.stride, 2);
    assert_eq!(site.vidtui(&[&apart[..], &["--stride", "2", "--fps", "8"]].concat()).code, 2);
}

#[test]
fn conditions_on_columns_leave_out_clips_before_they_are_read() {
    let site = site();
    site.write("clips/metadata.csv", "path,text,motion\na.mp4,one,1.5\nb.mp4,two,7\nnone.mp4,three,\n");
    let check = |conditions| site.vidtui(&["data", "check", "clips", "--out", "clips.jsonl", "--where", conditions]);
    let checked = check("motion between 0.5 and 2");
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    assert!(checked.stdout.contains("motion between 0.5 and 2         2                 1"), "{}", checked.stdout);
    let manifest = dataset::ClipManifest::read(&site.root.join("clips.jsonl")).unwrap();
    assert_eq!(manifest.header.conditions, "motion between 0.5 and 2");
    assert_eq!(manifest.clips.iter().map(|clip| clip.id.as_str()).collect::<Vec<_>>(), ["a.mp4"]);
    for (conditions, expected) in [
        ("motion > 10", (1, "invalid-dataset")),
        ("text > 10", (1, "invalid-dataset")),
        ("mution > 1", (1, "invalid-dataset")),
        ("motion >", (2, "invalid-argument")),
    ] {
        let (code, error) = site.error(&["data", "check", "clips", "--where", conditions]);
        assert_eq!((code, error.as_str()), expected, "{conditions}");
    }
}

#[test]
fn a_video_is_cut_into_clips_that_can_be_checked() {
    let site = site();
    let cut = ["data", "cut", "clips", "--out", "scenes", "--min", "0.4", "--max", "1"];
    let report = site.json(&[&cut[..], &["--json"]].concat());
    assert_eq!((report["videos"][0]["clips"].as_u64(), report["videos"][1]["clips"].as_u64()), (Some(2), Some(1)));
    let shown = site.succeeds(&cut);
    assert!(shown.contains("cuts.csv"), "{shown}");
    for name in ["a-0001", "a-0002", "b-0001"] {
        site.write(&format!("scenes/{name}.txt"), name);
    }
    let checked = site.json(&["data", "check", "scenes", "--frames", "9", "--json"]);
    assert_eq!(checked["report"]["usable"].as_u64(), Some(3));
    for (args, expected) in
        [(&["--min", "0.5"][..], (1, "already-exists")), (&["--min", "2", "--max", "1"], (2, "invalid-argument"))]
    {
        let (code, error) = site.error(&[&["data", "cut", "clips", "--out", "scenes"], args].concat());
        assert_eq!((code, error.as_str()), expected);
    }
}

#[test]
fn scores_are_written_into_a_table_that_conditions_can_use() {
    let site = site();
    let score = ["data", "score", "clips", "--out", "scores.csv"];
    let report = site.json(&[&score[..], &["--json"]].concat());
    // Both videos begin with the same frames.
    assert_eq!((report["rows"].as_u64(), report["near_duplicates"].as_u64()), (Some(2), Some(1)));
    assert_eq!(site.error(&score), (2, "already-exists".into()));
    let shown = site.succeeds(&[&score[..], &["--force"]].concat());
    assert!(shown.contains("sharpness") && shown.contains("scores.csv"), "{shown}");
    let check = |conditions| site.json(&["data", "check", "scores.csv", "--where", conditions, "--json"]);
    assert_eq!(check("motion > 0.1 and num_frames > 20")["report"]["clips"].as_u64(), Some(1));
    for args in [&["--out", "scores.txt"][..], &["--out", "b.csv", "--caption", "{caption}!"]] {
        assert_eq!(
            site.error(&[&["data", "score", "clips"], args].concat()),
            (2, "invalid-argument".into()),
            "{args:?}"
        );
    }
}

#[test]
fn clips_of_a_table_and_of_a_manifest_are_exported_to_other_trainers() {
    let site = site();
    site.write("clips/metadata.csv", "path,text,motion\na.mp4,one,1.5\nb.mp4,two,7\n");
    site.succeeds(&["data", "check", "clips", "--out", "clips.jsonl"]);
    let export = |source, format, more: &[&str]| {
        let args = ["data", "export", source, "--format", format, "--out", format, "--json"];
        site.json(&[&args[..], more].concat())
    };
    assert_eq!(export("clips", "open-sora", &["--where", "motion > 2"])["clips"].as_u64(), Some(1));
    let table = std::fs::read_to_string(site.root.join("open-sora/train.csv")).unwrap();
    assert!(table.contains("score_vmafmotion") && table.lines().nth(1).unwrap().ends_with(",7"), "{table}");
    assert_eq!(export("clips.jsonl", "videox-fun", &[])["clips"].as_u64(), Some(2));
    // The second video has 12 frames.
    let short = ["data", "export", "clips", "--format", "musubi", "--out", "musubi", "--frames", "33"];
    assert_eq!(site.error(&short), (1, "too-many-dropped".into()));
    let shown = site.succeeds(&[&short[..], &["--max-dropped", "50%"]].concat());
    assert!(shown.contains("dataset.toml"), "{shown}");
    for (args, expected) in [
        (&["clips", "--format", "lerobot"][..], (2, "invalid-argument")),
        (&["clips.jsonl", "--format", "musubi", "--where", "motion > 1"], (2, "invalid-argument")),
        (&["clips", "--format", "musubi", "--frames", "9", "--out", "musubi"], (1, "already-exists")),
    ] {
        let out = if args.contains(&"--out") { &[][..] } else { &["--out", "other"] };
        let (code, error) = site.error(&[&["data", "export"], args, out].concat());
        assert_eq!((code, error.as_str()), expected, "{args:?}");
    }
}

#[test]
fn invalid_checks_are_refused_before_any_video_is_read() {
    let site = site();
    for (args, expected) in [
        (&["clips", "--fps", "8"][..], (2, "invalid-argument")),
        (&["clips", "--frames", "0"], (2, "invalid-argument")),
        (&["clips", "--frames", "48"], (2, "invalid-argument")),
        (&["clips", "--frames", "9", "--mode", "time@fps"], (2, "invalid-argument")),
        (&["clips", "--out", "clips"], (2, "invalid-argument")),
        (&["clips", "--out", "none/clips.jsonl"], (2, "not-found")),
        (&["nonesuch"], (1, "not-found")),
        (&["clips", "--layout", "table"], (1, "invalid-dataset")),
        (&["clips", "--tokenizer", "nonesuch"], (1, "not-found")),
    ] {
        let (code, error) = site.error(&[&["data", "check"], args].concat());
        assert_eq!((code, error.as_str()), expected, "{args:?}");
    }
    assert_eq!(site.vidtui(&["data", "check", "clips", "--max-dropped", "5"]).code, 2);
    let missing = site.with("VIDTUI_FFPROBE", "/nonesuch/ffprobe");
    assert_eq!(missing.error(&["data", "check", "clips"]), (1, "program-missing".into()));
}

#[test]
fn buckets_show_where_clips_go_and_the_check_drops_the_same_clips() {
    let site = site();
    site.write(
        "configs/buckets.toml",
        "base = \"small/short.toml\"\nname = \"buckets\"\n[data]\n\
         buckets = [{ frames = 9, height = 48, width = 64, batch = 2 }, { frames = 49, height = 48, width = 64, batch = 1 }]\n",
    );
    let buckets = ["data", "buckets", "clips", "--recipe", "configs/buckets.toml", "--json"];
    let shown = site.json(&buckets);
    let rows: Vec<_> = shown["buckets"].as_array().unwrap().iter().collect();
    let of =
        |row: &serde_json::Value| ["frames", "clips", "batch", "micro_batches"].map(|key| row[key].as_u64().unwrap());
    assert_eq!(rows.into_iter().map(of).collect::<Vec<_>>(), [[9, 1, 2, 0], [49, 1, 1, 1]]);
    assert_eq!((shown["unused"].as_u64(), shown["thrown_away"].as_array().unwrap().len()), (Some(0), 0));
    // A step of two ranks takes the long clip from two epochs, and the short clip, two at a time, from four.
    assert_eq!(shown["steps_per_epoch"].as_f64(), Some(0.75));
    let set = "data.buckets=[{ frames = 49, height = 48, width = 64 }]";
    let shown = site.json(&[&buckets[..], &["--set", set]].concat());
    assert_eq!(shown["thrown_away"][0]["clips"].as_u64(), Some(1));
    site.write("configs/long.toml", &format!("base = \"buckets.toml\"\nname = \"long\"\n[data]\n{}\n", &set[5..]));
    let check = ["data", "check", "clips", "--for", "configs/long.toml"];
    assert_eq!(site.error(&[&check[..], &["--out", "clips.jsonl"]].concat()), (1, "too-many-dropped".into()));
    let manifest = dataset::ClipManifest::read(&site.root.join("clips.jsonl")).unwrap();
    let misfit = manifest.clips[1].excluded.as_ref();
    assert!(matches!(misfit, Some(dataset::ExclusionReason::NoBucket { frames: 12, .. })), "{misfit:?}");
    assert_eq!(manifest.clips[0].bucket.map(|bucket| bucket.to_string()), Some("49x48x64".into()));
    // The source may also be a manifest, and the recipe may have one size.
    assert_eq!(site.json(&["data", "buckets", "clips.jsonl", "--recipe", "configs/long.toml", "--json"])["clips"], 2);
    let none = ["data", "buckets", "clips", "--recipe", "configs/small/short.toml"];
    assert_eq!(site.error(&none), (1, "invalid-recipe".into()));
    let both = [&check[..], &["--frames", "49"]].concat();
    assert!(site.fails(&both).contains("--frames"));
}

#[test]
fn options_that_do_not_fit_the_source_of_buckets_are_refused() {
    let site = TestSite::new();
    let size = "{ frames = 9, height = 32, width = 32 }";
    let recipe = format!("base = \"small/short.toml\"\nname = \"buckets\"\n[data]\nbuckets = [{size}]\n");
    site.write("configs/buckets.toml", &recipe);
    let header = dataset::ManifestHeader::new("clips".into(), "pairs", &site.root);
    dataset::ClipManifest { header, clips: Vec::new() }.write(&site.root.join("clips.jsonl")).unwrap();
    let factory = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/dataset/factory");
    site.succeeds(&["data", "import", factory.as_str(), "latents", "--channels", "4"]);
    let on = |source| ["data", "buckets", source, "--recipe", "configs/buckets.toml"];
    assert_eq!(site.json(&[&on("clips.jsonl")[..], &["--fps", "8", "--json"]].concat())["clips"], 0);
    assert!(site.json(&[&on("latents")[..], &["--json"]].concat())["clips"].as_u64() > Some(0));
    for (source, options) in [
        ("videos", &["--fps", "0"][..]),
        ("videos", &["--fps", "8", "--mode", "linspace"]),
        ("videos", &["--mode", "time@fps"]),
        ("clips.jsonl", &["--layout", "pairs"]),
        ("clips.jsonl", &["--fps", "8", "--max-characters", "100"]),
        ("latents", &["--root", "videos"]),
        ("latents", &["--fps", "8"]),
        ("latents", &["--mode", "head"]),
        ("latents/index.jsonl", &["--stride", "2"]),
    ] {
        let error = site.error(&[&on(source)[..], options].concat());
        assert_eq!(error, (2, "invalid-argument".into()), "{source} {options:?}");
    }
    // Latents of 5 rows are not whole patches of 2.
    let odd = ["--set", "data.buckets=[{ frames = 9, height = 40, width = 32 }]"];
    assert_eq!(site.error(&[&on("clips.jsonl")[..], &odd].concat()), (2, "invalid-recipe".into()));
}
