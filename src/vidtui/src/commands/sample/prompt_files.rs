//! Prompt files: a prompt on each line, or the JSON of ttt-video-dit, in which a video is a list of segments.

use crate::command_error::CommandError;
use camino::Utf8Path;
use recipe::{Prompt, prompt_lines};
use rundir::{ErrorCode, Failure};
use serde::Deserialize;
use tokenizer::{SCENE_END, SCENE_START};

/// A segment of a video, as ttt-video-dit names its parts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    text: String,
    /// Whether another scene begins with this segment.
    #[serde(default)]
    requires_scene_transition: bool,
    neg_text: Option<String>,
}

/// Reads the prompts of a file, each with its place for errors, such as `line 3 of prompts.txt`.
///
/// # Errors
/// The file cannot be read, is not text, or is not in the format that its name ends in.
pub fn read(file: &Utf8Path) -> Result<Vec<(String, String)>, CommandError> {
    let text = rundir::read_text(file).map_err(|error| match error {
        io @ rundir::FileError::Io { .. } => CommandError::from(Failure::from(io)),
        other => CommandError::request(other),
    })?;
    let place = |line| format!("line {line} of {file}");
    match file.extension() {
        Some("json") => {
            let videos: Vec<serde_json::Value> =
                serde_json::from_str(&text).map_err(|error| malformed(file, &error))?;
            let prompt = |(at, video)| {
                let place = format!("video {} of {file}", at + 1);
                Ok((place.clone(), of_segments(file, &place, video)?))
            };
            videos.into_iter().enumerate().map(prompt).collect()
        }
        Some("jsonl") => {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            let prompt = |(at, line): (usize, &str)| {
                let place = place(at + 1);
                let video = serde_json::from_str(line).map_err(|error| malformed(file, &error))?;
                Ok((place.clone(), of_segments(file, &place, video)?))
            };
            lines.map(prompt).collect()
        }
        _ => Ok(prompt_lines(&text).map(|(line, prompt)| (place(line), prompt.to_owned())).collect()),
    }
}

/// Returns the prompt of a list of segments. Where a scene begins, the text before gets the token of a scene's end, and the text itself
/// that of a start.
///
/// Source: ttt-video-dit `ttt/models/cogvideo/sampler.py:47-56`.
fn of_segments(file: &Utf8Path, place: &str, video: serde_json::Value) -> Result<String, CommandError> {
    let segments: Vec<Segment> = serde_json::from_value(video).map_err(|error| malformed(file, &error))?;
    let starts = |at: usize| at > 0 && segments.get(at).is_some_and(|segment| segment.requires_scene_transition);
    let text = |(at, segment): (usize, &Segment)| {
        let start = if starts(at) { SCENE_START } else { "" };
        let end = if starts(at + 1) { SCENE_END } else { "" };
        format!("{start}{}{end}", segment.text.trim())
    };
    let texts: Vec<String> = segments.iter().enumerate().map(text).collect();
    let negatives: Vec<&str> =
        segments.iter().map(|segment| segment.neg_text.as_deref().unwrap_or("").trim()).collect();
    let has_negative = negatives.iter().any(|text| !text.is_empty());
    let negative = if has_negative { negatives.join(" || ") } else { String::new() };
    let reserved = |text: &str| text.contains("||") || text.contains(" --") || text.starts_with("--");
    if segments.iter().any(|segment| reserved(&segment.text) || segment.neg_text.as_deref().is_some_and(reserved)) {
        return Err(CommandError::request(Failure::new(
            ErrorCode::Malformed,
            format!("cannot use {place}"),
            "a text has \"||\" or \" --\", which separate segments and flags of a prompt",
            "write the text without them",
        )));
    }
    Ok(Prompt { texts, negative, ..Prompt::default() }.to_line())
}

fn malformed(file: &Utf8Path, error: &serde_json::Error) -> CommandError {
    CommandError::request(Failure::new(
        ErrorCode::Malformed,
        format!("cannot read the prompts of {file}"),
        error.to_string(),
        "write each video as a list of segments: [{\"text\": \"a cat sleeps\", \"requires_scene_transition\": false, \"neg_text\": \"\"}]",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(name: &str, text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = camino::Utf8PathBuf::try_from(folder.path().join(name)).unwrap();
        std::fs::write(&file, text).unwrap();
        let read = read(&file).map_err(|error| format!("{error:?}"))?;
        Ok(read.into_iter().map(|(_, prompt)| prompt).collect())
    }

    #[test]
    fn segments_with_a_scene_transition_get_the_tokens_of_ttt_video_dit() {
        let cat = r#"[{"text": "a cat"}, {"text": "a dog", "requires_scene_transition": true, "neg_text": "blurry"}, {"text": "it runs"}]"#;
        let hare = r#"[{"text": "a hare", "requires_scene_transition": true, "neg_text": null}]"#;
        let expected = ["a cat<end_scene> || <start_scene>a dog || it runs --n  || blurry || ", "a hare"];
        assert_eq!(prompts("a.json", &format!("[{cat}, {hare}]")).unwrap(), expected);
        assert_eq!(prompts("a.jsonl", &format!("{cat}\n\n{hare}\n")).unwrap(), expected);
        let read = Prompt::parse(expected[0]).unwrap();
        assert_eq!(read.texts, ["a cat<end_scene>", "<start_scene>a dog", "it runs"]);
        assert_eq!(read.negative_texts(), ["", "blurry", ""]);
    }

    #[test]
    fn a_byte_order_mark_is_not_a_part_of_the_first_prompt() {
        assert_eq!(prompts("a.txt", "\u{feff}# a comment\na hare\n").unwrap(), ["a hare"]);
        assert_eq!(prompts("a.json", "\u{feff}[[{\"text\": \"a hare\"}]]").unwrap(), ["a hare"]);
    }

    #[test]
    fn texts_that_would_be_read_as_flags_and_unknown_names_are_refused() {
        for text in [
            r#"[[{"text": "a --d 3"}]]"#,
            r#"[[{"text": "a || b"}]]"#,
            r#"[[{"text": "a", "transition": true}]]"#,
            r#"{"text": "a"}"#,
            "[[",
        ] {
            assert!(prompts("a.json", text).unwrap_err().contains("Malformed"), "{text}");
        }
    }
}
