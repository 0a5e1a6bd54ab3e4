//! The commands of `docs/your-videos.md` do what the document promises.

use crate::test_site::TestSite;
use std::process::Command;

const DOCUMENT: &str = include_str!("../../docs/your-videos.md");

/// Commands that are not run here: how they begin, and why.
const NOT_RUN: [(&str, &str); 7] = [
    ("vidtui fetch ", "needs the network; the tests of the crate `hub` download from a local server"),
    ("vidtui data encode ", "needs the weights of a model; tests/cluster encodes with small ones"),
    ("vidtui data show ", "needs an encoded data set; tests/cluster shows one"),
    ("vidtui convert ", "needs the weights of a model; tests/console/weights converts small ones"),
    ("vidtui check ", "needs a data set for the model; tests/console checks small ones"),
    ("vidtui launch ", "needs GPUs; tests/cluster trains on an encoded data set"),
    ("vidtui sample ", "needs a trained model; tests/cluster samples from a small one"),
];

/// Returns the lines of the blocks of shell commands.
fn commands() -> Vec<&'static str> {
    let blocks = DOCUMENT.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(str::lines).filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect()
}

/// Makes a site with the files that the document names.
fn site() -> TestSite {
    let site = TestSite::new();
    let cache = site.root.join("cache");
    let site = site.with("XDG_CACHE_HOME", cache.as_str());
    site.write("tables/metadata.csv", "video,long_caption,short\na.mp4,a ball rolls,ball\nb.mp4,a cube turns,cube\n");
    for (name, colour) in [("a", "red"), ("b", "blue")] {
        site.write(&format!("videos/{name}.txt"), &format!("a {colour} picture"));
        let mut ffmpeg = Command::new("ffmpeg");
        let source = format!("color={colour}:size=96x64:rate=8");
        ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", &source, "-frames:v", "56"]);
        assert!(ffmpeg.arg(site.root.join(format!("videos/{name}.mp4"))).status().unwrap().success());
    }
    site
}

#[test]
fn each_command_of_the_document_succeeds() {
    let site = site();
    let mut run = 0;
    for command in commands() {
        if let Some((_, why)) = NOT_RUN.iter().find(|(begins, _)| command.starts_with(begins)) {
            eprintln!("skipped: {command}: {why}");
            continue;
        }
        let command = command.split(" #").next().unwrap_or(command);
        let words: Vec<&str> = command.split_whitespace().collect();
        let ["vidtui", args @ ..] = &words[..] else { panic!("not a command of vidtui: {command}") };
        site.succeeds(args);
        run += 1;
    }
    assert!(run >= 4, "{run} commands were run");
    let manifest = dataset::Manifest::read(&site.root.join("videos.jsonl")).unwrap();
    assert_eq!(manifest.usable().count(), 2);
}
