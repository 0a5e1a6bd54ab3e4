//! Writes the captions of clips by a template, and checks their lengths.

use super::CheckRequest;
use super::clips::value;
use crate::layouts::SourceListing;
use crate::{CaptionTemplate, Clip, ClipRow, ExclusionReason, FieldValue};
use rundir::{ErrorCode, Failure};
use tokenizer::{SCENE_END, SCENE_START};

/// Writes the captions of usable clips by the template of the request, excludes those that are too long, and counts tokens.
///
/// # Errors
/// A clip has no value in a column that the template names; the failure names the first such clip.
pub(super) fn write(source: &SourceListing, clips: &mut [Clip], request: &CheckRequest<'_>) -> Result<(), Failure> {
    if let Some(template) = &request.source.template {
        let mut missing: Option<(String, String)> = None;
        let mut count = 0;
        for (clip, row) in clips.iter_mut().zip(&source.rows).filter(|(clip, _)| clip.is_usable()) {
            if let Err(name) = fill(template, clip, row, &source.fields.kept) {
                missing = missing.or_else(|| Some((name.to_owned(), place(row))));
                count += 1;
            }
        }
        if let Some((name, place)) = missing {
            return Err(no_value(template, &name, &place, count));
        }
    }
    for clip in clips.iter_mut().filter(|clip| clip.is_usable()) {
        let characters = clip.captions().map(|caption| caption.chars().count()).max().unwrap_or(0);
        let most = request.most_characters;
        if characters > most {
            clip.excluded = Some(ExclusionReason::CaptionTooLong { characters, most });
        } else {
            clip.tokens = request.count_tokens.and_then(|count| clip.captions().map(count).max());
        }
    }
    Ok(())
}

/// Replaces the captions of a clip. The tokens of scenes stay around the captions.
fn fill<'a>(template: &'a CaptionTemplate, clip: &mut Clip, row: &ClipRow, kept: &[String]) -> Result<(), &'a str> {
    let of_clip = clip.clone();
    let value = |name: &str| -> FieldValue { value(&of_clip, row, kept, name) };
    let filled = |caption: &str| {
        let (start, text) = caption.strip_prefix(SCENE_START).map_or(("", caption), |text| (SCENE_START, text));
        let (end, text) = text.strip_suffix(SCENE_END).map_or(("", text), |text| (SCENE_END, text));
        template.fill(text, &value).map(|text| format!("{start}{text}{end}"))
    };
    if clip.segments.is_empty() {
        clip.caption = filled(&clip.caption)?;
        return Ok(());
    }
    clip.segments = clip.segments.iter().map(|caption| filled(caption)).collect::<Result<_, _>>()?;
    clip.caption = clip.segments.join("\n");
    Ok(())
}

fn place(row: &ClipRow) -> String {
    if row.origin.is_empty() { row.name.clone() } else { row.origin.clone() }
}

fn no_value(template: &CaptionTemplate, name: &str, place: &str, count: usize) -> Failure {
    let others = match count - 1 {
        0 => String::new(),
        others => format!(", and neither have {} more", units::counted(others, "clip")),
    };
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot write captions as \"{}\"", template.text),
        format!("{place} has no value for {{{name}}}{others}"),
        "fill in the values; or leave out clips without a number, for example: --where \"motion >= 0\"",
    )
}
