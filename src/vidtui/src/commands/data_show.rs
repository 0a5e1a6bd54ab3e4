//! `vidtui data show`: shows the content of a store of latents and texts.

use crate::args::DataShowArgs;
use crate::command_error::CommandError;
use crate::commands::refuse_existing;
use crate::output::{self, Side, facts, table};
use crate::pictures::{self, Terminal};
use crate::terminal::takes_escapes;
use ::dataset::show::{Summary, find_clip, summarize};
use ::dataset::store::{Line, StoreSpec, TensorLocation};
use ::dataset::store_folder;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::process::Command;
use ui::Size;
use weights::Header;

/// The maximum number of failures in a table. `--json` lists all of them.
const FAILURES: usize = 20;

/// Prints a summary of a store, or one of its clips.
pub fn run(args: &DataShowArgs) -> Result<(), CommandError> {
    let data = store_folder(&args.data).unwrap_or_else(|| args.data.clone());
    let Some(id) = &args.id else {
        let summary = summarize(&data)?;
        return if args.output.json { output::json(&summary) } else { output::text(&shown(&data, &summary)) };
    };
    let clip = find_clip(&data, id)?;
    if args.picture && !takes_escapes(&io::stdout()) {
        let (what, why) = (
            format!("cannot print pictures of '{id}'"),
            "standard output is not a terminal that shows colours (NO_COLOR or TERM=dumb may be set)",
        );
        let fix = "run the command in a terminal, or decode to a video with --decode clip.mp4";
        return Err(CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, why, fix)));
    }
    if let Some(out) = &args.decode {
        refuse_existing(out, args.force)?;
        decode(&data, id, out, args)?;
    }
    if args.output.json {
        return output::json(&clip);
    }
    output::text(&clip_shown(&clip, &extra_shapes(&data, &clip)?))?;
    if !args.picture {
        return Ok(());
    }
    match &args.decode {
        Some(video) => print_pictures(video),
        None => {
            let folder = TemporaryFolder::create()?;
            let video = folder.0.join("clip.mp4");
            decode(&data, id, &video, args)?;
            print_pictures(&video)
        }
    }
}

/// The maximum number of frames that are printed side by side.
const PICTURES: u16 = 4;
/// The smallest width of a picture in columns.
const PICTURE_WIDTH: u16 = 20;
/// The maximum height of a picture in rows.
const PICTURE_HEIGHT: u16 = 24;

/// Prints evenly spaced frames of a video side by side.
fn print_pictures(video: &Utf8Path) -> Result<(), CommandError> {
    let (columns, rows) = crossterm::terminal::size().unwrap_or((80, 24));
    let count = (columns / PICTURE_WIDTH).clamp(1, PICTURES);
    // Leave a column between pictures, and a row for the prompt of the shell.
    let size = Size {
        width: ((columns + 1) / count).saturating_sub(1).max(1),
        height: rows.saturating_sub(1).clamp(1, PICTURE_HEIGHT),
    };
    let pictures = Terminal::half_blocks().frames(video, usize::from(count), size)?;
    output::styled(&pictures::to_ansi(&pictures))
}

/// A folder for a decoded video, removed when dropped.
struct TemporaryFolder(Utf8PathBuf);

impl TemporaryFolder {
    /// Makes a folder that only this user can access, with a name that other users cannot guess.
    fn create() -> Result<Self, Failure> {
        let parent = Utf8PathBuf::try_from(std::env::temp_dir()).unwrap_or_else(|_| "/tmp".into());
        let made = nix::unistd::mkdtemp(parent.join("vidtui-show-XXXXXX").as_std_path()).map_err(io::Error::from);
        let folder = made.and_then(|path| Utf8PathBuf::try_from(path).map_err(io::Error::other));
        Ok(Self(folder.map_err(|error| rundir::Error::io("make a folder in", &parent, error))?))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Decodes a latent of a clip with the trainer, which contains the VAE's code.
fn decode(data: &Utf8Path, id: &str, out: &Utf8Path, args: &DataShowArgs) -> Result<(), Failure> {
    let spec = StoreSpec::read(data)?;
    // `spec.vae.name` is the folder of the model that encoded the store.
    let vae = args.vae.clone().unwrap_or_else(|| Utf8Path::new(&spec.vae.name).join("vae"));
    if !vae.join("config.json").exists() {
        return Err(Failure::new(
            ErrorCode::NotFound,
            format!("cannot decode '{id}'"),
            format!("{vae} has no config.json of a VAE"),
            "give the folder of the VAE that encoded the data set: --vae CogVideoX-5b/vae",
        ));
    }
    let trainer = remote::trainer_path()?;
    let mut command = Command::new(&trainer);
    command.args(["data", "decode", data.as_str(), id, out.as_str(), "--vae", vae.as_str()]);
    let tensor = args.tensor.as_deref().map(|tensor| ["--tensor", tensor]);
    command.args(tensor.iter().flatten());
    let failed = |why: String| {
        Failure::new(
            ErrorCode::CommandFailed,
            format!("cannot decode '{id}'"),
            why,
            format!(
                "run it by hand: {trainer} data decode {data} '{id}' {out} --vae {vae} {}",
                tensor.unwrap_or_default().join(" ")
            ),
        )
    };
    let status = command.status().map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(failed(format!("{trainer} ended with {status}"))) }
}

fn shown(data: &Utf8Path, summary: &Summary) -> String {
    let spec = &summary.spec;
    let mut rows = vec![
        ("data set".to_owned(), data.to_string()),
        ("clips".into(), units::grouped(summary.clips as u64)),
        ("texts".into(), {
            let empty = if summary.empty_text { ", and the empty caption" } else { ", without the empty caption" };
            format!("{}{empty}", units::grouped(summary.texts as u64))
        }),
        ("size".into(), format!("{} in {}", units::short_size(summary.bytes), units::counted(summary.shards, "shard"))),
        ("VAE".into(), of(&spec.vae.name, &spec.vae.identity, &spec.vae.dtype)),
        ("text encoder".into(), of(&spec.text.name, &spec.text.encoder, &spec.text.dtype)),
        ("frames".into(), {
            // For imported latents, the other program did not record how it chose the frames.
            let fps = spec.frames.fps.map_or(String::new(), |fps| format!(" at {} fps", units::number(fps)));
            match (spec.frames.count, &spec.buckets) {
                (0, Some(buckets)) => {
                    format!("those of its bucket ({}), {}{fps}", buckets.rule.name(), spec.frames.mode)
                }
                (0, None) => "not known".into(),
                (count, _) => format!("{count} {}{fps}", spec.frames.mode),
            }
        }),
    ];
    if summary.without_checksum > 0 {
        rows.push((
            "checksums".into(),
            format!(
                "{} {} none, so damage to them is not found; record them: vidtui data verify {data} --record",
                units::counted(summary.without_checksum, "clip"),
                if summary.without_checksum == 1 { "has" } else { "have" }
            ),
        ));
    }
    if let Some(condition) = &spec.condition {
        rows.push(("condition".into(), condition.in_words()));
    }
    if summary.unused_bytes > 0 {
        rows.push((
            "unused".into(),
            format!(
                "{} in shards that no clip uses: vidtui data prune {data}",
                units::short_size(summary.unused_bytes)
            ),
        ));
    }
    if let Some(done) = &summary.encode {
        let (texts, latents) = (done.texts, done.latents);
        let text = format!("texts {} of {texts}, latents {} of {latents}", done.texts_done, done.latents_done);
        rows.push(("encode".into(), format!("not complete: {text}, {} failed", done.failed)));
    }
    let mut text = facts(&rows);
    for (title, counts) in [("bucket", &summary.buckets), ("latent", &summary.shapes)] {
        if !counts.is_empty() {
            let rows: Vec<Vec<String>> =
                counts.iter().map(|(name, n)| vec![name.clone(), units::grouped(*n as u64)]).collect();
            text += &format!("\n{}", table(&[(title, Side::Left), ("clips", Side::Right)], &rows));
        }
    }
    if !summary.failures.is_empty() {
        let rows: Vec<Vec<String>> = summary
            .failures
            .iter()
            .take(FAILURES)
            .map(|failed| vec![failed.item.name.clone(), format!("{}: {}", failed.failure.what, failed.failure.why)])
            .collect();
        text += &format!("\n{}", table(&[("failed", Side::Left), ("why", Side::Left)], &rows));
        if summary.failures.len() > FAILURES {
            text += &format!("{} more: --json lists all\n", summary.failures.len() - FAILURES);
        }
    }
    text
}

/// Formats a name with the first digits of its hash and its dtype.
fn of(name: &str, identity: &str, dtype: &str) -> String {
    let hash: String = identity.chars().take(12).collect();
    [name, &hash, dtype].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Returns the shapes of the tensors of a clip's condition, by role.
fn extra_shapes(data: &Utf8Path, clip: &Line) -> Result<BTreeMap<String, String>, Failure> {
    let shape = |(role, place): (&String, &TensorLocation)| {
        let header = Header::read(&data.join(&place.shard))?;
        Ok((role.clone(), with_crosses(&header.tensor(&place.name)?.shape)))
    };
    clip.extra.iter().map(shape).collect()
}

fn with_crosses(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("×")
}

fn clip_shown(clip: &Line, extra_shapes: &BTreeMap<String, String>) -> String {
    let numbers: Vec<String> = clip.times.iter().map(|time| format!("{time:.3}")).collect();
    let kind = if clip.drawn { "drawn" } else { "means and log-variances" };
    let mut rows = vec![
        ("clip".to_owned(), clip.id.clone()),
        ("video".into(), clip.source.to_string()),
        ("bucket".into(), clip.bucket.clone()),
        ("latent".into(), format!("{}, {kind}", with_crosses(&clip.shape))),
        ("stored in".into(), format!("{}, tensor {}", clip.latent.shard, clip.latent.name)),
        ("latent key".into(), clip.latent_key.clone()),
    ];
    rows.extend(clip.extra.iter().map(|(role, TensorLocation { shard, name, .. })| {
        let shape = extra_shapes.get(role).map_or("", String::as_str);
        (role.clone(), format!("{shape}, in {shard}, tensor {name}"))
    }));
    rows.extend(clip.text.iter().map(|text| ("text in".to_owned(), format!("{}, tensor {}", text.shard, text.name))));
    rows.extend(clip.text_keys.iter().map(|key| ("text key".to_owned(), key.clone())));
    rows.push((
        "times".into(),
        if numbers.is_empty() { "not known".into() } else { format!("{} s", numbers.join(" ")) },
    ));
    rows.push(("caption".into(), clip.caption.clone()));
    facts(&rows)
}
