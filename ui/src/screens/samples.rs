//! The Samples screen: plays the videos that a run made from its weights, and compares the same prompt at several
//! steps.

use crate::bindings::{Action, Context};
use crate::effect::{Effect, Request, Watch};
use crate::jobs::Intent;
use crate::layout::{self, Panel, cut_top};
use crate::model::{Input, Model, Purpose, RunScreen, Screen, Session};
use crate::msg::{Clip, RunRow, Size};
use crate::run_state::short_id;
use crate::screens::{Behaviour, Press, Wheel, open_with_run, run};
use crate::text;
use crate::widgets::shared_axis::position_at;
use crate::widgets::{failure_lines, hint, panel as heading_of_panel, write, write_centered, write_lines, write_split};
use camino::{Utf8Path, Utf8PathBuf};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::Task;
use rundir::{EventKind, RunDir, SampleFolder, SampleSidecar};
use std::collections::BTreeSet;

/// The minimum width of a video beside others.
const MIN_COLUMN: u16 = 24;
/// Columns between videos side by side.
const GAP: u16 = 2;

/// Opens the Samples screen for the open run.
pub fn open(model: &mut Model) {
    match model.screens.run.as_ref().and_then(|run| model.row(&run.id)).map(|row| row.task) {
        Some(Task::Encode) => model.warn("An encode makes no videos"),
        _ if model.screens.run.is_some() => model.screen = Screen::Samples,
        _ => {}
    }
}

/// Returns whether the open run has weights from which videos can be made.
pub fn can_sample(model: &Model) -> bool {
    model.screens.run.as_ref().and_then(|run| model.row(&run.id)).is_some_and(RunRow::makes_videos)
}

/// Opens the text input for a prompt. The weights of the open run then make a video of that prompt.
pub fn open_prompt(model: &mut Model) {
    if can_sample(model) {
        model.input = Some(Input::new(Purpose::Prompt, String::new()));
    } else {
        model.warn("This run has no checkpoint to make a video from");
    }
}

/// Requests the plan of a run that makes a video of the prompt.
pub fn sample(model: &mut Model, prompt: String) -> Vec<Effect> {
    let Some(run) = model.screens.run.as_ref().map(|run| run.id.clone()) else { return Vec::new() };
    let job = model.jobs.start(Intent::PlanStage { stage: "the video".to_owned() });
    vec![Effect::Job { job, request: Request::PlanSample { run, prompt } }]
}

/// The screen.
pub struct Samples;

impl Behaviour for Samples {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        if action == Action::Prompt {
            open_prompt(model);
            return Vec::new();
        }
        let Some(run) = &mut model.screens.run else { return Vec::new() };
        let samples = &mut run.samples;
        match action {
            Action::SampleNext => samples.move_step(1),
            Action::SamplePrevious => samples.move_step(-1),
            Action::Up => samples.move_prompt(-1),
            Action::Down => samples.move_prompt(1),
            Action::Top => samples.move_step(isize::MIN),
            Action::Bottom => samples.step = None,
            Action::Play => samples.paused = !samples.paused,
            Action::SideBySide => samples.side_by_side = !samples.side_by_side,
            Action::Back => model.screen = Screen::Run,
            Action::Open | Action::CopyPath => {
                let Some(video) = video(model) else {
                    model.warn("There is no sample to open");
                    return Vec::new();
                };
                if action == Action::Open && model.has_desktop {
                    model.notify(format!("Opening {video}"));
                    return vec![Effect::OpenFile(video)];
                }
                model.notify(format!("Copied {video}"));
                return vec![Effect::Copy(video.into_string())];
            }
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, body: Rect) {
        let Some(run) = &model.screens.run else { return };
        let parts = parts(run, body);
        let of_prompt = run.samples.of_prompt();
        heading(model, run, &of_prompt, buf, parts.heading);
        let faint = model.theme.faint;
        let Some(selected) = of_prompt.get(run.samples.position(&of_prompt)) else {
            write_centered(model, buf, body, nothing(model, run, usize::from(body.width.min(76))));
            return;
        };
        let wrapped = text::wrap(&text::clean(&selected.prompt.replace('\n', " ")), usize::from(parts.prompt.width));
        write_lines(model, buf, parts.prompt, wrapped.into_iter().map(Line::raw));
        for (sample, caption, area) in placed(model, run) {
            if run.samples.side_by_side {
                let step = format!("step {}", units::grouped(sample.step));
                write(model, buf, caption, Line::styled(step, model.theme.strong));
            }
            picture(model, run, sample, buf, area);
        }
        write(model, buf, parts.steps, Line::styled(STEPS, faint));
        for (place, number, area) in steps(run, parts.steps) {
            let is_selected = place == run.samples.position(&of_prompt);
            let pointer = if is_selected { model.symbols.pointer } else { " " };
            let style = if is_selected { model.theme.strong } else { Style::new() };
            let spans = vec![Span::styled(pointer, model.theme.accent), Span::styled(number, style)];
            write(model, buf, area, Line::from(spans));
        }
        let path = video(model).map(Utf8PathBuf::into_string).unwrap_or_default();
        let path = text::fit_end(&path, usize::from(parts.file.width), model.symbols.ellipsis);
        write(model, buf, parts.file, Line::styled(path, faint));
    }

    fn can_open(&self, model: &Model) -> bool {
        model.run_to_open().is_some()
    }

    fn open(&self, model: &mut Model) {
        open_with_run(model, open);
    }

    fn subject(&self, model: &Model, room: usize) -> String {
        model.run_subject(room)
    }

    fn watches(&self, model: &Model, wanted: &mut BTreeSet<Watch>) {
        let Some(run) = &model.screens.run else { return };
        wanted.insert(Watch::Run(run.id.clone()));
        watch_clips(model, run, placed(model, run).into_iter().map(|(sample, _, area)| (sample, area)), wanted);
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        press(model, at);
        Press::Done
    }

    fn on_drag(&self, model: &mut Model, at: Position) {
        drag(model, at);
    }

    fn on_wheel(&self, model: &mut Model, at: Position, direction: Action) -> Wheel {
        Wheel::Act(wheel_action(model, at, direction))
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        sample(model, input.text)
    }

    fn save(&self, model: &Model, session: &mut Session) {
        run::save(model, session);
    }

    fn restore(&self, model: &mut Model, session: &Session) -> Screen {
        run::restore(model, session)
    }
}

/// Returns the path of the selected video.
fn video(model: &Model) -> Option<Utf8PathBuf> {
    let run = model.screens.run.as_ref()?;
    let sample = run.samples.shown(1).last().map(|sample| (sample.step, sample.index))?;
    let folder = run.status.as_ref().and_then(|status| status.samples.clone());
    let folder = folder.unwrap_or_else(|| SampleFolder::OfRun(RunDir::of(&model.runs_dir, &run.id)));
    Some(folder.video(sample.0, sample.1))
}

/// The parts of the screen. A part without room has height 0.
struct Parts {
    heading: Rect,
    prompt: Rect,
    videos: Rect,
    /// The steps that have a sample of the prompt, if there are several.
    steps: Rect,
    file: Rect,
}

fn parts(run: &RunScreen, body: Rect) -> Parts {
    let (heading, rest) = cut_top(body, 1);
    // A long prompt gets two rows if there is room.
    let (prompt, rest) = cut_top(rest, if rest.height >= 20 { 2 } else { 1 });
    let (rest, file) = cut_top(rest, rest.height.saturating_sub(1));
    let steps = u16::from(rest.height >= 6 && run.samples.of_prompt().len() > 1);
    let (videos, steps) = cut_top(rest, rest.height - steps);
    Parts { heading, prompt, videos, steps, file }
}

/// The word before the steps.
const STEPS: &str = "step ";

/// Returns the steps that have a sample of the selected prompt, as far as they fit into a row: the position of each among
/// them, its number and its area. If not all fit, the row has the page with the selected step.
fn steps(run: &RunScreen, row: Rect) -> Vec<(usize, String, Rect)> {
    let all = run.samples.of_prompt();
    let numbers: Vec<String> = all.iter().map(|sample| units::grouped(sample.step)).collect();
    // A pointer before the number, and two blanks behind it.
    let width = numbers.iter().map(|number| text::width(number)).max().unwrap_or(0) as u16 + 3;
    let left = row.x + STEPS.len() as u16;
    let count = usize::from((row.right().saturating_sub(left) / width).max(1));
    let first = run.samples.position(&all) / count * count;
    let area = |place: usize| Rect { x: left + (place - first) as u16 * width, width, ..row }.intersection(row);
    let shown = numbers.into_iter().enumerate().skip(first).take(count);
    shown.map(|(place, number)| (place, number, area(place))).collect()
}

/// A part of the screen under the mouse.
enum Part {
    /// The text of the prompt.
    Prompt,
    /// A step, by the position of its sample among those of the prompt.
    Step(usize),
    /// A video, by the position of its sample, and its frame at the column of the mouse; `None` until it is loaded.
    Video(usize, Option<usize>),
}

fn part_at(model: &Model, at: Position) -> Option<Part> {
    let run = model.screens.run.as_ref()?;
    let parts = parts(run, layout::areas(model.size).body);
    if parts.prompt.contains(at) {
        return Some(Part::Prompt);
    }
    if parts.steps.contains(at) {
        let found = steps(run, parts.steps).into_iter().find(|(.., area)| area.contains(at));
        return found.map(|(place, ..)| Part::Step(place));
    }
    let under = |(_, caption, picture): &(&SampleSidecar, Rect, Rect)| caption.contains(at) || picture.contains(at);
    let (sample, _, picture) = placed(model, run).into_iter().find(under)?;
    let place = run.samples.of_prompt().iter().position(|other| other.step == sample.step)?;
    let clip = run.samples.clip((sample.step, sample.index), size_of(picture)).and_then(|clip| clip.as_ref().ok());
    let last = clip.and_then(|clip| clip.frames.len().checked_sub(1));
    let frame = last.map(|last| position_at(picture, (0.0, last as f64), at.x).round() as usize);
    Some(Part::Video(place, frame))
}

/// Handles a press of the mouse button: selects a step or a video, or the next prompt. A press on the selected video
/// pauses or plays it.
fn press(model: &mut Model, at: Position) {
    let part = part_at(model, at);
    let Some(run) = &mut model.screens.run else { return };
    let samples = &mut run.samples;
    samples.pressed_at = matches!(part, Some(Part::Video(..))).then_some(at.x);
    let selected = samples.position(&samples.of_prompt());
    match part {
        Some(Part::Prompt) => samples.turn_prompt(),
        Some(Part::Video(place, _)) if place == selected => samples.paused = !samples.paused,
        Some(Part::Step(place) | Part::Video(place, _)) => samples.select(place),
        None => {}
    }
}

/// Handles a drag of the mouse: over the steps, it selects the step under the pointer; over a video, it pauses the videos
/// and shows the frame at the pointer.
fn drag(model: &mut Model, at: Position) {
    let part = part_at(model, at);
    let Some(run) = &mut model.screens.run else { return };
    let samples = &mut run.samples;
    match (part, samples.pressed_at) {
        (Some(Part::Step(place)), None) => samples.select(place),
        // During a click, the pointer may move by a column on some terminals.
        (Some(Part::Video(_, Some(frame))), Some(from)) if from.abs_diff(at.x) >= 2 => {
            (samples.paused, samples.frame) = (true, frame);
        }
        _ => {}
    }
}

/// Returns what the wheel does at a position of the terminal: over the prompt, it changes the prompt, elsewhere the step.
fn wheel_action(model: &Model, at: Position, direction: Action) -> Action {
    match (part_at(model, at), direction) {
        (Some(Part::Prompt), _) => direction,
        (_, Action::Up) => Action::SamplePrevious,
        _ => Action::SampleNext,
    }
}

/// Returns the visible samples, each with the areas of its caption and its picture.
pub(crate) fn placed<'a>(model: &Model, run: &'a RunScreen) -> Vec<(&'a SampleSidecar, Rect, Rect)> {
    let area = parts(run, layout::areas(model.size).body).videos;
    let columns = ((area.width + GAP) / (MIN_COLUMN + GAP)).max(1);
    let shown = run.samples.shown(usize::from(columns));
    let count = shown.len().max(1) as u16;
    let width = area.width.saturating_sub(GAP * (count - 1)) / count;
    let place = |i: usize| Rect { x: area.x + i as u16 * (width + GAP), width, ..area };
    let split = |(i, sample)| {
        let (caption, picture) = cut_top(place(i), 1);
        (sample, caption, picture)
    };
    shown.into_iter().enumerate().map(split).collect()
}

/// Adds the clips of visible samples, each with the area of its picture, and their clock while one plays.
pub fn watch_clips<'a>(
    model: &Model,
    run: &RunScreen,
    placed: impl IntoIterator<Item = (&'a SampleSidecar, Rect)>,
    wanted: &mut BTreeSet<Watch>,
) {
    if !model.symbols.braille {
        return;
    }
    let sized = placed.into_iter().map(|(sample, area)| (sample.step, sample.index, size_of(area)));
    let clips: Vec<(u64, usize, Size)> = sized.filter(|(_, _, size)| size.width >= 4 && size.height >= 2).collect();
    let loaded = clips.iter().rev().filter_map(|(step, index, size)| run.samples.clip((*step, *index), *size));
    let moving = loaded.flatten().find(|clip| clip.frames.len() > 1 && clip.fps > 0.0).filter(|_| !run.samples.paused);
    // Milliseconds between two frames.
    let every_ms = moving.map(|clip| (1000.0 / clip.fps).clamp(20.0, 2000.0) as u32);
    wanted.extend(every_ms.map(|every_ms| Watch::Frames { run: run.id.clone(), every_ms }));
    let clip = |(step, prompt, size)| Watch::Clip { run: run.id.clone(), step, prompt, size };
    wanted.extend(clips.into_iter().map(clip));
}

/// Returns the size of an area.
pub(crate) fn size_of(area: Rect) -> Size {
    Size { width: area.width, height: area.height }
}

/// Splits the area of the Samples panel into heading, picture and prompt.
pub fn panel_parts(area: Rect) -> (Rect, Rect, Rect) {
    let (heading, rest) = cut_top(area, 1);
    let (video, prompt) = cut_top(rest, rest.height.saturating_sub(1));
    (heading, video, prompt)
}

/// Draws the Samples panel of the Run screen: one video.
pub fn panel(model: &Model, run: &RunScreen, buf: &mut Buffer, area: Rect) {
    let (_, video, prompt) = panel_parts(area);
    let focused = run.focus == Panel::Samples;
    let faint = model.theme.faint;
    let Some(sample) = run.samples.selected() else {
        let below = heading_of_panel(model, buf, area, "Samples", Vec::new(), focused);
        write_lines(model, buf, below, nothing(model, run, usize::from(below.width)));
        return;
    };
    let prompts = run.samples.prompts().len();
    let of = if prompts > 1 {
        format!("  prompt {} of {prompts}", run.samples.prompt.min(prompts - 1) + 1)
    } else {
        String::new()
    };
    let step = Span::styled(of_step(model, run, sample), model.theme.strong);
    heading_of_panel(model, buf, area, "Samples", vec![step, Span::styled(of, faint)], focused);
    picture(model, run, sample, buf, video);
    let words =
        text::fit(&text::clean(&sample.prompt.replace('\n', " ")), usize::from(prompt.width), model.symbols.ellipsis);
    write(model, buf, prompt, Line::styled(words, faint));
}

/// Returns the step of the weights that made a sample. In a sampling run, the text says so, because the run counts
/// other steps.
fn of_step(model: &Model, run: &RunScreen, sample: &SampleSidecar) -> String {
    let samples = model.row(&run.id).is_some_and(|row| row.task == Task::Sample);
    format!("{}step {}", if samples { "weights of " } else { "" }, units::grouped(sample.step))
}

/// Returns why there is no video, and how to get one.
fn nothing(model: &Model, run: &RunScreen, width: usize) -> Vec<Line<'static>> {
    let faint = model.theme.faint;
    let wrapped = |text: String| text::wrap(&text, width).into_iter().map(|line| Line::styled(line, faint));
    if run.samples.samples.is_none() {
        return vec![Line::styled("Loading the samples…", faint)];
    }
    if let Some(folder) = other_folder(run) {
        return wrapped(format!("The videos are in {folder}")).collect();
    }
    let mut lines = vec![Line::styled("No video yet", faint)];
    if model.row(&run.id).is_some_and(|row| row.task == Task::Train && !row.is_command) {
        let how = "Set sample.every and sample.prompts in the recipe to make videos while it trains.";
        lines.extend(wrapped(how.to_owned()));
    }
    if can_sample(model) {
        let key = model.keys.name(Context::Samples, Action::Prompt);
        lines.push(Line::from(hint(model, &key, "make a video of a prompt, in a run of its own")));
    }
    lines
}

/// Returns the folder of the videos if the user chose one outside the folder of the run.
fn other_folder(run: &RunScreen) -> Option<&Utf8Path> {
    let own = &run.status.as_ref()?.dir;
    run.events.iter().rev().find_map(|event| match &event.kind {
        EventKind::SampleSaved { path, .. } => path.parent().filter(|folder| !folder.starts_with(own)),
        _ => None,
    })
}

fn heading(model: &Model, run: &RunScreen, of_prompt: &[&SampleSidecar], buf: &mut Buffer, area: Rect) {
    let theme = &model.theme;
    let mut left = vec![Span::styled(short_id(&run.id).to_owned(), theme.strong)];
    let Some(sample) = of_prompt.get(run.samples.position(of_prompt)) else {
        write(model, buf, area, Line::from(left));
        return;
    };
    let prompts = run.samples.prompts();
    let prompt = run.samples.prompt.min(prompts.len() - 1) + 1;
    left.push(Span::raw(format!("  {}", of_step(model, run, sample))));
    left.push(Span::styled(format!(" ({} of {})", run.samples.position(of_prompt) + 1, of_prompt.len()), theme.faint));
    left.push(Span::raw(format!("  prompt {prompt} of {}", prompts.len())));
    let how = format!(
        "{}×{}, {} at {} fps, {} {} steps, guidance {}, seed {}{}",
        sample.width,
        sample.height,
        units::counted(sample.frames, "frame"),
        sample.fps,
        sample.scheduler,
        sample.sampling_steps,
        sample.guidance,
        sample.seed,
        if sample.ema { ", EMA" } else { "" },
    );
    write_split(model, buf, area, Line::from(left), Line::styled(how, theme.faint));
}

/// Draws one video.
fn picture(model: &Model, run: &RunScreen, sample: &SampleSidecar, buf: &mut Buffer, area: Rect) {
    match run.samples.clip((sample.step, sample.index), size_of(area)) {
        Some(Ok(clip)) => frame(clip, run.samples.frame, buf, area),
        Some(Err(failure)) => write_lines(model, buf, area, failure_lines(model, failure, usize::from(area.width))),
        None if model.symbols.braille => write(model, buf, area, Line::styled("Loading…", model.theme.faint)),
        None => write(model, buf, area, Line::styled("Pictures need a UTF-8 terminal", model.theme.faint)),
    }
}

/// Copies a frame of a clip into the middle of an area.
fn frame(clip: &Clip, number: usize, buf: &mut Buffer, area: Rect) {
    let Some(frame) = number.checked_rem(clip.frames.len()).map(|at| &clip.frames[at]) else { return };
    let size = frame.area;
    if size.width > area.width || size.height > area.height {
        return;
    }
    let (left, top) = (area.x + (area.width - size.width) / 2, area.y + (area.height - size.height) / 2);
    for y in 0..size.height {
        for x in 0..size.width {
            if let (Some(to), Some(from)) = (buf.cell_mut((left + x, top + y)), frame.cell((x, y))) {
                *to = from.clone();
            }
        }
    }
}
