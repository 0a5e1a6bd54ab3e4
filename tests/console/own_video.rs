//! Encodes a folder of videos, trains on it and samples a video, with the keys of the console and the real trainer.
//! Without the trainer, the test prints that it is skipped.

use crate::pty::ENTER;
use crate::real_trainer::site_with_trainer;
use crate::samples::model;
use crate::test_site::TestSite;
use recipe::Task;
use rundir::{RunDir, SampleSidecar};
use std::fs;
use std::process::Command;

/// The recipe of a small model that trains on the data set `encoded`.
const RECIPE: &str = r#"name = "mine"

[model]
num_layers = 1
num_heads = 1
in_channels = 4
out_channels = 4
time_embed_dim = 16
text_dim = 24
text_len = 6
latent_frames = 3
latent_height = 8
latent_width = 12
latent_scale = 0.7

[data]
index = "encoded"

[encoders]
folder = "model"
dtype = "float32"

[train]
steps = 2
global_batch = 2

[optimizer]
warmup_steps = 1

[mesh]
dp_shard = 2
"#;

const ENCODE: &str = "clips --model model --out encoded --frames 9 --height 64 --width 96 --text-len 6 \
                      --dtype float32 --local 2";

/// Returns the run of a task.
fn run_of(site: &TestSite, task: Task) -> Option<RunDir> {
    site.runs().into_iter().find(|run| run.read_run().unwrap().task() == task)
}

#[test]
fn a_folder_of_videos_becomes_a_video_with_the_keys_of_the_console() {
    let Some(site) = site_with_trainer() else { return };
    model(&site, "model", &[]);
    site.write("mine.toml", RECIPE);
    for (name, colour) in [("a", "red"), ("b", "blue"), ("c", "green"), ("d", "white")] {
        site.write(&format!("clips/{name}.txt"), &format!("a {colour} picture"));
        let mut ffmpeg = Command::new("ffmpeg");
        let source = format!("color={colour}:size=96x64:rate=8");
        ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", &source, "-frames:v", "16"]);
        assert!(ffmpeg.arg(site.root.join(format!("clips/{name}.mp4"))).status().unwrap().success());
    }

    let mut console = site.console((120, 40), &[], &[]);
    console.shows(&["No runs yet"]).press("E").shows(&["vidtui data encode"]).press(ENCODE).press(ENTER);
    console.shows(&["Start encode-encoded?", "Enter start"]).press(ENTER);
    console.shows(&["encode-encoded", "finished", "4 of 4 clips"]);
    assert!(site.root.join("encoded/index.jsonl").is_file());

    console.press("5").shows(&["configs"]).press("n").shows(&["vidtui launch"]).press("mine.toml").press(ENTER);
    console.shows(&["Start mine?", "passed"]).press(ENTER).shows(&["step 2 of 2", "finished"]);

    console.press("p").shows(&["Prompt:"]).press("a red picture --s 2 --d 7").press(ENTER);
    console.shows(&["Start sample", "Enter start"]).press(ENTER).shows(&["1 of 1 video", "finished"]);
    let run = run_of(&site, Task::Sample).expect("a run that samples");
    let samples = run.list_samples().unwrap();
    let [SampleSidecar { step: 2, index: 0, seed: 7, frames: 9, .. }] = samples[..] else { panic!("{samples:?}") };
    let video = run.sample_video(2, 0);
    let probe = video::probe(&video).unwrap();
    assert_eq!((probe.width, probe.height), (96, 64));
    assert!(fs::metadata(&video).unwrap().len() > 0);

    console.press("v").shows(&["prompt 1 of 1", "000.mp4"]);
    console.until("pictures", |screen| screen.contents().contains(['▀', '▄', '█']));
    console.press("q");
    assert_eq!(console.ended(), 0);
}
