//! Compares buckets with those that Open-Sora assigned, and with VideoX-Fun's sizes.

use std::collections::BTreeMap;

use camino::Utf8Path;
use serde_json::Value as Json;

use super::open_sora::OpenSora;
use super::*;
use crate::{RecipeErrorKind, load, oracle};

/// Reads a recorded configuration: Open-Sora's resolutions with `frames: [probability or pair, batch]`.
fn open_sora(recorded: &Json) -> OpenSora {
    let rule = if recorded["version"] == "v2" { BucketRule::OpenSora2 } else { BucketRule::OpenSora12 };
    let mut specs = Vec::new();
    for (size, lengths) in recorded["config"].as_object().unwrap() {
        for (frames, entry) in lengths.as_object().unwrap() {
            let pair = entry[0].as_array();
            let second = pair.map(|pair| pair[1].as_f64().unwrap());
            specs.push(BucketSpec {
                frames: frames.parse().unwrap(),
                size: Some(size.clone()),
                accept: pair.map_or(&entry[0], |pair| &pair[0]).as_f64(),
                stay: second.filter(|_| rule.is_first()),
                skip: second.filter(|_| !rule.is_first()),
                batch: entry[1].as_u64().map(|batch| batch as usize),
                ..BucketSpec::default()
            });
        }
    }
    OpenSora::new(rule, &specs).unwrap()
}

fn number(value: &Json) -> usize {
    value.as_u64().unwrap() as usize
}

/// Returns the size of a recorded video. Open-Sora 2 takes every n-th frame, so that a video has at most `fps_max` frames per second.
fn clip(recorded: &Json, [frames, height, width, fps]: [&Json; 4]) -> ClipSize {
    let interval = match (recorded["fps_max"].as_f64(), fps.as_f64()) {
        (Some(most), Some(fps)) if fps >= most => (fps / most).ceil() as usize,
        _ => 1,
    };
    ClipSize { frames: number(frames) / interval, height: number(height), width: number(width) }
}

fn recorded(end: &str) -> Vec<(String, Json)> {
    let files = oracle::entries("opensora/buckets", &format!("*{end}"), |path| path.as_str().ends_with(end));
    files.into_iter().map(|path| (path.to_string(), read(&path))).collect()
}

fn read(path: &Utf8Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn oracle_open_sora_assigns_the_same_buckets() {
    for (path, file) in recorded("_assign.json") {
        let rule = open_sora(&file);
        assert_eq!(rule.count(), number(&file["num_bucket"]), "{path}");
        let videos = file["videos"].as_array().unwrap();
        for video in videos {
            let size = clip(&file, ["num_frames", "height", "width", "fps"].map(|key| &video[key]));
            let found = rule.assign(size, video["seed"].as_u64().unwrap()).ok();
            let wanted = video["thw"].as_array().map(|thw| Bucket {
                frames: number(&thw[0]),
                height: number(&thw[1]),
                width: number(&thw[2]),
            });
            assert_eq!(found, wanted, "{path}: {video}");
        }
        println!("compared {} videos of {path}", videos.len());
    }
}

#[test]
fn oracle_open_sora_assigns_the_same_clips_in_each_epoch() {
    for (path, file) in recorded("_batches.json") {
        let rule = open_sora(&file);
        let seed = file["seed"].as_u64().unwrap();
        let videos = file["videos"].as_array().unwrap();
        for epoch in file["epochs"].as_array().unwrap() {
            let mut members: BTreeMap<Bucket, Vec<usize>> = BTreeMap::new();
            for (i, video) in videos.iter().enumerate() {
                let seed = seed + epoch["epoch"].as_u64().unwrap() + (i * rule.count()) as u64;
                if let Ok(bucket) = rule.assign(clip(&file, [0, 1, 2, 3].map(|key| &video[key])), seed) {
                    members.entry(bucket).or_default().push(i);
                }
            }
            let mut found: Vec<Vec<usize>> = members.into_values().collect();
            found.sort();
            let buckets = epoch["buckets"].as_array().unwrap();
            let mut wanted: Vec<Vec<usize>> = buckets
                .iter()
                .map(|bucket| bucket["members"].as_array().unwrap().iter().map(number).collect())
                .collect();
            wanted.sort();
            assert_eq!(found, wanted, "{path} epoch {}", epoch["epoch"]);
            println!("compared {} videos of {path} in epoch {}", videos.len(), epoch["epoch"]);
        }
    }
}

#[test]
fn oracle_the_sizes_of_open_sora_are_those_of_its_tables() {
    type Sizes = fn(&str) -> Vec<aspect::Aspect>;
    let first: Sizes = |name| aspect::of_open_sora_1_2(name).unwrap().1;
    let second: Sizes = |name| OpenSora::sizes_of_2(name);
    for (file, sizes) in [("v12_aspect_tables.json", first), ("v2_aspect_tables.json", second)] {
        for (path, file) in recorded(file) {
            for (name, table) in file.as_object().unwrap() {
                let name = match name.split_once(" D16 training") {
                    Some((name, _)) => name,
                    None if name.contains(' ') => continue,
                    None => name,
                };
                let table = table.get("ratios").unwrap_or(table).as_object().unwrap();
                let mut wanted: Vec<[usize; 2]> = table.values().map(|size| [0, 1].map(|i| number(&size[i]))).collect();
                let mut found: Vec<[usize; 2]> = sizes(name).into_iter().map(|(_, size)| size).collect();
                wanted.sort();
                found.sort();
                assert_eq!(found, wanted, "{path} {name}");
            }
        }
    }
}

fn recipe(sets: &[&str]) -> Result<Recipe, crate::RecipeError> {
    let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
    load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).map(|resolved| resolved.recipe)
}

fn size(frames: usize, height: usize, width: usize) -> ClipSize {
    ClipSize { frames, height, width }
}

fn assigned(buckets: &Buckets, clip: ClipSize, seed: u64) -> String {
    buckets.assign(clip, seed).map_or_else(|misfit| format!("{misfit:?}"), |bucket| bucket.to_string())
}

const LIST: &str = "data.buckets=[{ frames = 49, height = 480, width = 720, batch = 1 }, { frames = 25, height = 720, width = 480 }, \
     { frames = [9, 25], height = 256, width = 384, batch = 4 }, { frames = 1, height = 480, width = 720 }]";

#[test]
fn a_list_takes_the_nearest_ratio_then_the_most_frames() {
    let buckets = recipe(&[LIST]).unwrap().buckets().unwrap();
    let of = |frames, height, width| assigned(&buckets, size(frames, height, width), 0);
    assert_eq!(of(60, 1080, 1620), "49x480x720");
    assert_eq!(of(60, 1920, 1080), "25x720x480", "upright");
    assert_eq!(of(30, 1080, 1620), "25x256x384", "too short for 49 frames");
    assert_eq!(of(60, 320, 480), "25x256x384", "too small for 480 × 720");
    assert_eq!(of(1, 1080, 1920), "1x480x720", "an image");
    assert_eq!(of(1, 240, 320), "TooSmall", "an image");
    assert_eq!(of(8, 1080, 1920), "TooShort", "buckets of one frame take images only");
    assert_eq!(of(60, 100, 100), "TooSmall");
}

#[test]
fn a_micro_batch_is_that_of_its_bucket_or_of_the_recipe() {
    let recipe = recipe(&[LIST, "train.global_batch=6", "train.grad_accum=2"]).unwrap();
    let of = |frames, height, width| recipe.micro_batch_at(recipe.latent_of(Bucket { frames, height, width }));
    assert_eq!([of(49, 480, 720), of(25, 256, 384), of(25, 720, 480), of(5, 64, 64)], [1, 4, 3, 3]);
}

#[test]
fn a_recipe_with_buckets_is_read_as_it_was_written() {
    let recipe = recipe(&[LIST]).unwrap();
    assert_eq!(recipe.data.buckets.len(), 5, "a list of frames makes one bucket of each");
    assert_eq!(Recipe::from_table(&recipe.to_table()), Ok(recipe));
}

const BUDGET: &str = "data.buckets=[{ frames = 49, side = 512, min_side = 256, max_side = 1024, tile = true }]";

/// The lengths of VideoX-Fun for the sides 256 to 1024.
#[test]
fn a_token_budget_has_fewer_frames_of_larger_sides() {
    let buckets = recipe(&["data.bucket_rule=token_budget", BUDGET]).unwrap().buckets().unwrap();
    let square = |bucket: &Bucket| bucket.height == bucket.width && bucket.frames > 1;
    let squares: Vec<String> = buckets.all().into_iter().filter(square).map(|bucket| bucket.to_string()).collect();
    let wanted = ["13x1024x1024", "17x896x896", "21x768x768", "29x640x640", "49x256x256", "49x384x384", "49x512x512"];
    assert_eq!(squares, wanted);
    let drawn = |clip| {
        let mut all: Vec<String> = (0..200).map(|seed| assigned(&buckets, clip, seed)).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(drawn(size(100, 400, 400)), ["49x256x256", "49x384x384"], "below 1.25 × 400");
    assert_eq!(drawn(size(31, 400, 400)), ["29x256x256", "29x384x384"]);
    assert_eq!(drawn(size(100, 1600, 1600)).len(), 7);
    let batch = |frames, side| buckets.batch_of(Bucket { frames, height: side, width: side });
    assert_eq!([batch(49, 512), batch(49, 256), batch(9, 256)], [None, Some(2), Some(4)]);
}

/// Compares the buckets with those that VideoX-Fun's `collate_fn` (commit 804a4258, `random_hw_adapt`, token lengths) drew in 400 batches of
/// each clip.
#[test]
fn sides_of_images_and_videos_are_drawn_as_videox_fun_draws_them() {
    /// min_side and max_side, the clip, the drawn buckets in sorted order.
    type Case<'a> = ([usize; 2], [usize; 3], &'a [&'a str]);
    let cases: &[Case] = &[
        ([512, 512], [1, 2000, 1500], &["1x576x448"]),
        ([256, 1280], [1, 2000, 1500], &["1x1152x896", "1x1440x1120", "1x288x224", "1x720x560", "1x960x736"]),
        ([256, 1280], [1, 480, 720], &["1x1040x1520", "1x208x304", "1x512x752", "1x688x1008", "1x832x1216"]),
        ([256, 1024], [1, 2000, 1500], &["1x1152x896", "1x288x224", "1x576x448", "1x768x592", "1x912x704"]),
        ([256, 1024], [1, 480, 720], &["1x208x304", "1x416x608", "1x544x800", "1x656x960", "1x832x1216"]),
        ([256, 1280], [49, 512, 910], &["21x576x1008", "29x480x832", "49x192x336", "49x288x496", "49x384x672"]),
        (
            [256, 1280],
            [49, 720, 1280],
            &[
                "13x768x1344",
                "17x672x1168",
                "21x576x1008",
                "29x480x832",
                "49x192x336",
                "49x288x496",
                "49x384x672",
                "9x864x1504",
            ],
        ),
        ([256, 1024], [30, 910, 512], &["21x1008x576", "29x336x192", "29x496x288", "29x672x384", "29x832x480"]),
        ([256, 1024], [49, 600, 600], &["29x640x640", "49x256x256", "49x384x384", "49x512x512"]),
        ([256, 1024], [49, 200, 300], &["49x208x304"]),
    ];
    for ([min, max], [frames, height, width], wanted) in cases {
        let set = format!("data.buckets=[{{ frames = 49, side = 512, min_side = {min}, max_side = {max} }}]");
        let buckets = recipe(&["data.bucket_rule=token_budget", &set]).unwrap().buckets().unwrap();
        let mut drawn: Vec<String> =
            (0..2000).map(|seed| assigned(&buckets, size(*frames, *height, *width), seed)).collect();
        drawn.sort();
        if *frames == 1 && min < max {
            let first = drawn.iter().filter(|bucket| **bucket == format!("1x{}", largest(*max, *height))).count();
            assert!(
                (1420..1580).contains(&first),
                "{first} of 2000 images of {max} have the largest side, expected 0.75"
            );
        }
        drawn.dedup();
        assert_eq!(drawn, *wanted, "{frames}x{height}x{width} in {min} to {max}");
        let known: Vec<String> = buckets.all().iter().map(Bucket::to_string).collect();
        assert!(drawn.iter().all(|bucket| known.contains(bucket) || *frames == 30), "a bucket of the plan is missing");
    }
}

/// Returns the largest size of the two recorded images.
fn largest(max_side: usize, height: usize) -> &'static str {
    match (max_side, height) {
        (1280, 2000) => "1440x1120",
        (1280, _) => "1040x1520",
        (_, 2000) => "1152x896",
        _ => "832x1216",
    }
}

#[test]
fn random_ratios_and_lengths_are_drawn_for_each_clip() {
    let set = "data.buckets=[{ frames = 49, side = 512, random_ratio = true, random_frames = true }]";
    let buckets = recipe(&["data.bucket_rule=token_budget", set]).unwrap().buckets().unwrap();
    let drawn: Vec<Bucket> = (0..2000).map(|seed| buckets.assign(size(60, 720, 1280), seed).unwrap()).collect();
    let all_frames = drawn.iter().filter(|bucket| bucket.frames == 49).count();
    assert!((1740..1860).contains(&all_frames), "{all_frames} of 2000 have all frames, expected 0.9");
    let lengths: std::collections::BTreeSet<usize> = drawn.iter().map(|bucket| bucket.frames).collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), (5..=49).step_by(4).collect::<Vec<_>>());
    let upright = drawn.iter().filter(|bucket| bucket.height > bucket.width).count();
    assert!((600..1000).contains(&upright), "{upright} of 2000 are upright: 25 of 62 weights have a ratio above 1");
    assert!(drawn.iter().all(|bucket| bucket.height % 16 == 0 && bucket.width % 16 == 0));
}

#[test]
fn sizes_of_open_sora_1_2_are_rounded_to_whole_patches() {
    let sets = ["data.bucket_rule=open_sora_1_2", "data.buckets=[{ size = '144p', frames = 49 }]"];
    let buckets = recipe(&sets).unwrap().buckets().unwrap();
    assert_eq!(assigned(&buckets, size(50, 1080, 1920), 0), "49x144x256");
    assert_eq!(assigned(&buckets, size(49, 1080, 1920), 0), "TooShort", "1.2 needs one frame more");
    assert_eq!(assigned(&buckets, size(50, 720, 1920), 0), "49x112x304", "117 × 312");
}

#[test]
fn buckets_that_cannot_be_used_are_refused_with_a_hint() {
    let (one, two, budget) =
        ("data.bucket_rule=open_sora_1_2", "data.bucket_rule=open_sora_2", "data.bucket_rule=token_budget");
    let refused: &[&[&str]] = &[
        &["data.buckets=49"],
        &["data.buckets=[{ height = 480 }]"],
        &["data.buckets=[{ frames = 49, hieght = 480 }]"],
        &["data.buckets=[{ frames = 49, height = 480, width = 720, batch = 0 }]"],
        &["data.buckets=[{ frames = 49, height = 480 }]"],
        &["data.buckets=[{ frames = 48, height = 480, width = 720 }]"],
        &["data.buckets=[{ frames = 49, height = 484, width = 720 }]"],
        &["data.buckets=[{ frames = 49, height = 488, width = 720 }]"],
        &["data.buckets=[{ frames = [49, 49], height = 480, width = 720 }]"],
        &["data.buckets=[{ frames = 49, size = '256px' }]"],
        &["data.bucket_rule=open_sora"],
        &[two],
        &[two, "data.buckets=[{ frames = 49, height = 480, width = 720 }]"],
        &[two, "data.buckets=[{ frames = 49 }]"],
        &[two, "data.buckets=[{ frames = 49, size = '256', skip = 0.5 }]"],
        &[two, "data.buckets=[{ frames = 49, size = '256px_ar7:5' }]"],
        &[two, "data.buckets=[{ frames = 49, size = '256px', stay = 0.3 }]"],
        &[two, "data.buckets=[{ frames = 49, size = '256px', accept = 1.5 }]"],
        &[one, "data.buckets=[{ frames = 49, size = '256px' }]"],
        &[one, "data.buckets=[{ frames = 49, size = '360p', skip = 0.3 }]"],
        &[one, "data.buckets=[{ frames = 51, size = '360p' }]"],
        &[one, "data.buckets=[{ frames = [49, 49], size = '360p' }]"],
        &[budget, "data.buckets=[{ frames = 49 }]"],
        &[budget, "data.buckets=[{ frames = 49, side = 512, min_side = 640 }]"],
        &[budget, "data.buckets=[{ frames = [25, 49], side = 512 }]"],
    ];
    let shown: Vec<String> = refused
        .iter()
        .map(|sets| {
            let error = recipe(sets).expect_err(&sets.join(" "));
            assert!(
                [RecipeErrorKind::InvalidValue, RecipeErrorKind::BrokenRule].contains(&error.kind),
                "{:?}",
                error.kind
            );
            format!("--set {}\n  {}\n  hint: {}", sets.join(" --set "), error.why, error.fix)
        })
        .collect();
    insta::assert_snapshot!(shown.join("\n\n"));
}
