//! The Convert screen: the options, the preview of every tensor, and the progress of a conversion.

use crate::bindings::{Action, Context};
use crate::conversion::ConvertForm;
use crate::conversion::ConvertOptions;
use crate::conversion::ConvertPreview;
use crate::conversion::WeightType;
use crate::effect::{Effect, Request};
use crate::jobs::Intent;
use crate::layout;
use crate::model::{Input, Model, Preview, Purpose, Screen, Work};
use crate::msg::JobId;
use crate::screens::{Behaviour, NOTCH, Press, Wheel};
use crate::text;
use crate::widgets::{failure_lines, hint, panel, write, write_lines};
use camino::Utf8PathBuf;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use recipe::Layer;
use rundir::Failure;

/// The input fields, in the order of the screen.
const FIELDS: [Field; 6] = [Field::Source, Field::Target, Field::Form, Field::Layer, Field::Type, Field::Merge];
/// The output forms, in the order in which keys cycle through them.
const FORMS: [ConvertForm; 5] = [
    ConvertForm::Internal,
    ConvertForm::Diffusers,
    ConvertForm::LoraDiffusers,
    ConvertForm::LoraPeft,
    ConvertForm::LoraKohya,
];
/// The supported sources: a name and a description of each.
const SOURCES: [(&str, &str); 5] = [
    ("diffusers", "CogVideoX, Fun or Wan: transformer/, or the pipeline"),
    ("runs", "id, name, latest or folder (newest checkpoint), or a checkpoint"),
    ("ttt-video", "a folder of .distcp files, a .pt or .pth file"),
    ("LoRA", "an adapter of diffusers, PEFT or kohya: converted, or merged into weights"),
    ("more", "channels, seed, scale, tensors to ignore: vidtui convert --help"),
];

/// An input field of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Source,
    Target,
    Form,
    Layer,
    Type,
    Merge,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Self::Source => "from",
            Self::Target => "to",
            Self::Form => "as",
            Self::Layer => "layers",
            Self::Type => "type",
            Self::Merge => "merge",
        }
    }
}

/// Opens the screen with these options and requests a preview.
pub fn open_with(model: &mut Model, options: ConvertOptions) -> Vec<Effect> {
    model.screen = Screen::Convert;
    model.screens.convert.options = options;
    model.screens.convert.field = 0;
    request_preview(model)
}

/// Returns whether the shown preview can be executed.
pub fn can_start(model: &Model) -> bool {
    let ready = matches!(&model.screens.convert.preview, Preview::Shown(preview) if preview.refusal.is_none());
    ready && model.screens.convert.work.is_none()
}

/// Requests a preview if source and target are set.
fn request_preview(model: &mut Model) -> Vec<Effect> {
    model.screens.convert.scroll = 0;
    let options = model.screens.convert.options.clone();
    if options.source.as_str().is_empty() || options.target.as_str().is_empty() {
        model.screens.convert.preview = Preview::None;
        return Vec::new();
    }
    let job = model.jobs.start(Intent::PlanConvert);
    model.screens.convert.preview = Preview::Requested(job);
    vec![Effect::Job { job, request: Request::PlanConvert { options } }]
}

/// Shows a preview, or why there is none. An answer to an earlier request is ignored.
pub fn planned(model: &mut Model, job: JobId, answer: Result<Box<ConvertPreview>, Failure>) {
    if matches!(model.screens.convert.preview, Preview::Requested(requested) if requested == job) {
        model.screens.convert.preview = answer.map_or_else(Preview::Refused, Preview::Shown);
    }
}

/// Records the progress of the conversion.
pub fn moved(model: &mut Model, job: JobId, done: u64, total: u64) {
    if let Some(work) = model.screens.convert.work.as_mut().filter(|work| work.job == job) {
        (work.done, work.total) = (done, total);
    }
}

/// Ends the running conversion; `made` is true if it succeeded.
pub fn ended(model: &mut Model, job: JobId, made: bool) {
    if let Some(work) = model.screens.convert.work.take_if(|work| work.job == job) {
        model.screens.convert.options.replace = false;
        model.screens.convert.scroll = 0;
        // The target may exist now, so that a preview with the same options would fail.
        model.screens.convert.preview = if made { Preview::Made(work.target, work.to) } else { Preview::None };
    }
}

/// Applies a path that the user typed.
pub fn typed(model: &mut Model, purpose: Purpose, text: &str) -> Vec<Effect> {
    let path = Utf8PathBuf::from(text.trim());
    let options = &mut model.screens.convert.options;
    match purpose {
        Purpose::ConvertMerge => options.merge = Some(path).filter(|path| !path.as_str().is_empty()),
        Purpose::ConvertSource => {
            // The default target is beside the source. It follows the source until the user chooses another target.
            if options.target.as_str().is_empty() || options.target == beside(&options.source, options.to) {
                options.target = beside(&path, options.to);
            }
            options.source = path;
        }
        _ => options.target = path,
    }
    // The permission to replace applies to one target folder only.
    model.screens.convert.options.replace = false;
    request_preview(model)
}

fn beside(source: &Utf8PathBuf, form: ConvertForm) -> Utf8PathBuf {
    let trimmed = source.as_str().trim_end_matches('/');
    if trimmed.is_empty() {
        return Utf8PathBuf::new();
    }
    format!("{trimmed}-{}", form.word()).into()
}

/// The screen.
pub struct Convert;

impl Behaviour for Convert {
    fn on_action(&self, model: &mut Model, action: Action) -> Vec<Effect> {
        let field = FIELDS[model.screens.convert.field];
        match action {
            Action::Up => model.screens.convert.field = model.screens.convert.field.saturating_sub(1),
            Action::Down => model.screens.convert.field = (model.screens.convert.field + 1).min(FIELDS.len() - 1),
            Action::Top => model.screens.convert.field = 0,
            Action::Bottom => model.screens.convert.field = FIELDS.len() - 1,
            Action::PageDown => scroll(model, preview_rows(model) as isize),
            Action::PageUp => scroll(model, -(preview_rows(model) as isize)),
            Action::Edit => return edit(model, field),
            Action::OptionNext => return choose(model, field, 1),
            Action::OptionPrevious => return choose(model, field, -1),
            Action::Convert => return start(model),
            Action::Replace => return replace(model),
            Action::CancelWork => return cancel(model),
            Action::Back => model.screen = Screen::Runs,
            _ => {}
        }
        Vec::new()
    }

    fn view(&self, model: &Model, buf: &mut Buffer, _body: Rect) {
        let (top, below) = areas(model);
        let fields = panel(model, buf, top, "Convert weights", Vec::new(), false);
        let width = usize::from(fields.width);
        let lines: Vec<Line<'static>> =
            FIELDS.iter().enumerate().map(|(n, field)| line(model, n, *field, width)).collect();
        write_lines(model, buf, fields, lines);
        let (progress, below) = parts_below(model, below);
        if let Some(work) = &model.screens.convert.work {
            let area = panel(model, buf, progress, "Converting", Vec::new(), true);
            write_lines(model, buf, area, work_lines(model, work, usize::from(area.width)));
        }
        let area = panel(model, buf, below, "Preview", Vec::new(), false);
        let lines = preview_lines(model, usize::from(area.width));
        let more = lines.len() > usize::from(area.height);
        let scroll = model.screens.convert.scroll.min(lines.len().saturating_sub(1));
        let left = lines.len().saturating_sub(scroll + usize::from(area.height));
        write_lines(model, buf, area, lines.into_iter().skip(scroll));
        if more && left > 0 && area.height > 1 {
            let last = Rect { y: area.bottom() - 1, height: 1, ..area };
            let key = model.keys.name(Context::Convert, Action::PageDown);
            let text = format!("{} {} more lines: {key}", model.symbols.ellipsis, left + 1);
            for x in last.left()..last.right() {
                if let Some(cell) = buf.cell_mut((x, last.y)) {
                    cell.reset();
                }
            }
            write(model, buf, last, Line::styled(text, model.theme.faint));
        }
    }

    fn open(&self, model: &mut Model) {
        model.screen = Screen::Convert;
    }

    fn tab(&self) -> Action {
        Action::ShowConvert
    }

    fn on_press(&self, model: &mut Model, at: Position) -> Press {
        Press::row(fields_until(model, at.y))
    }

    fn on_wheel(&self, model: &mut Model, at: Position, direction: Action) -> Wheel {
        if !preview_area(model).contains(at) {
            return Wheel::Scroll;
        }
        let lines = NOTCH as isize;
        scroll(model, if direction == Action::Up { -lines } else { lines });
        Wheel::Done
    }

    fn on_entered(&self, model: &mut Model, input: Input) -> Vec<Effect> {
        typed(model, input.purpose, &input.text)
    }
}

/// Returns the number of lines of the preview that are visible.
fn preview_rows(model: &Model) -> usize {
    usize::from(preview_area(model).height.saturating_sub(2)).max(1)
}

/// Scrolls the preview by a number of lines; up if it is negative.
pub fn scroll(model: &mut Model, lines: isize) {
    let all = preview_lines(model, usize::from(preview_area(model).width)).len();
    let last = all.saturating_sub(preview_rows(model));
    model.screens.convert.scroll = model.screens.convert.scroll.saturating_add_signed(lines).min(last);
}

/// Returns the number of fields from the selected one to the one at a row of the terminal.
fn fields_until(model: &Model, row: u16) -> Option<isize> {
    let fields = layout::cut_top(areas(model).0, 1).1;
    layout::entries_until(fields, row, 0, model.screens.convert.field, FIELDS.len())
}

fn edit(model: &mut Model, field: Field) -> Vec<Effect> {
    let (purpose, path) = match field {
        Field::Source => (Purpose::ConvertSource, &model.screens.convert.options.source),
        Field::Target => (Purpose::ConvertTarget, &model.screens.convert.options.target),
        Field::Merge => {
            let text = model.screens.convert.options.merge.as_ref().map(ToString::to_string).unwrap_or_default();
            model.input = Some(Input::new(Purpose::ConvertMerge, text));
            return Vec::new();
        }
        _ => return choose(model, field, 1),
    };
    let options = &model.screens.convert.options;
    let is_proposal = field == Field::Target && options.target == beside(&options.source, options.to);
    let input = if is_proposal { Input::with_proposal } else { Input::new };
    model.input = Some(input(purpose, path.as_str()));
    Vec::new()
}

fn choose(model: &mut Model, field: Field, by: isize) -> Vec<Effect> {
    fn turned<T: PartialEq + Copy>(all: &[T], now: T, by: isize) -> T {
        let at = all.iter().position(|one| *one == now).unwrap_or(0) as isize;
        all[(at + by).rem_euclid(all.len() as isize) as usize]
    }
    let options = &mut model.screens.convert.options;
    match field {
        Field::Source | Field::Target | Field::Merge => return Vec::new(),
        Field::Form => {
            let was = options.to;
            options.to = turned(&FORMS, was, by);
            if options.target == beside(&options.source, was) {
                options.target = beside(&options.source, options.to);
                options.replace = false;
            }
        }
        Field::Layer => {
            let all = [None, Some(Layer::None), Some(Layer::TttLinear), Some(Layer::TttMlp)];
            options.layer = turned(&all, options.layer, by);
        }
        Field::Type => {
            let all = [None, Some(WeightType::Float32), Some(WeightType::Bfloat16), Some(WeightType::Float16)];
            options.dtype = turned(&all, options.dtype, by);
        }
    }
    request_preview(model)
}

/// Toggles whether to replace an existing conversion, and requests the preview of that.
fn replace(model: &mut Model) -> Vec<Effect> {
    match &model.screens.convert.preview {
        Preview::Shown(preview) if preview.in_the_way && model.screens.convert.work.is_none() => {
            model.screens.convert.options.replace = !model.screens.convert.options.replace;
            request_preview(model)
        }
        _ => {
            model.warn("There is no existing conversion to replace");
            Vec::new()
        }
    }
}

fn start(model: &mut Model) -> Vec<Effect> {
    if model.screens.convert.work.is_some() {
        model.warn(format!(
            "A conversion is running. Wait for it, or press {} to cancel it.",
            model.keys.name(Context::Convert, Action::CancelWork)
        ));
        return Vec::new();
    }
    let preview = match &model.screens.convert.preview {
        Preview::Shown(preview) if preview.refusal.is_none() => preview.clone(),
        Preview::Shown(_) | Preview::Refused(_) => {
            model.warn("This cannot be converted; the preview shows why");
            return Vec::new();
        }
        Preview::Requested(_) => {
            model.warn("Still reading the weights");
            return Vec::new();
        }
        Preview::None | Preview::Made(..) => {
            model.warn("Choose a source and a new folder first");
            return Vec::new();
        }
    };
    let (target, to) = (preview.options.target.clone(), preview.options.to);
    let job = model.jobs.start(Intent::Convert(target.clone()));
    let since_s = model.now;
    model.screens.convert.work =
        Some(Work { job, target, to, done: 0, total: preview.bytes, since_s, stopping: false });
    vec![Effect::Job { job, request: Request::Convert { preview } }]
}

fn cancel(model: &mut Model) -> Vec<Effect> {
    let Some(work) = model.screens.convert.work.as_mut() else {
        model.warn("No conversion is running");
        return Vec::new();
    };
    work.stopping = true;
    vec![Effect::StopJob(work.job)]
}

/// Returns the areas of the input fields and of the preview.
fn areas(model: &Model) -> (Rect, Rect) {
    let body = layout::areas(model.size).body;
    let (fields, rest) = layout::cut_top(body, FIELDS.len() as u16 + 2);
    (fields, rest)
}

/// Returns the area of the preview, with its heading.
fn preview_area(model: &Model) -> Rect {
    parts_below(model, areas(model).1).1
}

fn line(model: &Model, number: usize, field: Field, width: usize) -> Line<'static> {
    let (theme, options) = (&model.theme, &model.screens.convert.options);
    let chosen = number == model.screens.convert.field;
    let pointer = if chosen { format!("{} ", model.symbols.pointer) } else { "  ".to_owned() };
    let style = if chosen { theme.strong } else { Style::new() };
    let mut spans =
        vec![Span::styled(pointer, theme.accent), Span::styled(format!("{:<8}", field.name()), theme.faint)];
    let room = width.saturating_sub(10);
    let path = |path: &Utf8PathBuf, empty: &str| match path.as_str() {
        "" => Span::styled(text::fit(empty, room, model.symbols.ellipsis), theme.faint),
        path => Span::styled(text::fit_end(path, room, model.symbols.ellipsis), style),
    };
    spans.push(match field {
        Field::Source => path(&options.source, "a diffusers folder, a run, a checkpoint, a .pt file (Enter to type)"),
        Field::Target => path(&options.target, "a new folder"),
        Field::Form => Span::styled(
            match options.to {
                ConvertForm::Internal => "internal: a checkpoint that training starts from",
                ConvertForm::Diffusers => "diffusers: a folder for from_pretrained",
                ConvertForm::LoraDiffusers => "lora-diffusers: an adapter as diffusers saves it",
                ConvertForm::LoraPeft => "lora-peft: an adapter as PEFT saves it",
                ConvertForm::LoraKohya => "lora-kohya: an adapter with kohya's names",
            },
            style,
        ),
        Field::Layer => Span::styled(
            match options.layer {
                None => "unchanged",
                Some(Layer::None) => "none: without TTT layers",
                Some(Layer::TttLinear) => "ttt_linear: added where missing",
                Some(Layer::TttMlp) => "ttt_mlp: added where missing",
            },
            style,
        ),
        Field::Type => Span::styled(options.dtype.map_or("unchanged", WeightType::word), style),
        Field::Merge => match &options.merge {
            Some(adapter) => path(adapter, ""),
            None => Span::styled("no adapter", style),
        },
    });
    Line::from(spans)
}

fn work_lines(model: &Model, work: &Work, width: usize) -> Vec<Line<'static>> {
    let (theme, symbols) = (&model.theme, &model.symbols);
    let fraction = if work.total == 0 { 0.0 } else { work.done as f64 / work.total as f64 };
    let bar = width.saturating_sub(8).min(60);
    let full = ((fraction * bar as f64) as usize).min(bar);
    let rate = work.done as f64 / (model.now - work.since_s).max(0.1);
    let left = work.total.saturating_sub(work.done) as f64 / rate.max(1.0);
    let percent = format!(" {:>3} %", (fraction * 100.0) as u64);
    let mut facts = format!("{} of {}", units::short_size(work.done), units::short_size(work.total));
    if work.stopping {
        facts += ", stopping";
    } else if work.done > 0 {
        facts += &format!(", {}/s, {} left", units::short_size(rate as u64), units::duration(left));
    }
    let mut second = vec![Span::raw(format!("{facts}   "))];
    if !work.stopping {
        second.extend(hint(model, &model.keys.name(Context::Convert, Action::CancelWork), "cancel"));
    }
    vec![
        Line::from(vec![
            Span::styled(symbols.bar_done.repeat(full), theme.accent),
            Span::styled(symbols.bar_open.repeat(bar - full), theme.faint),
            Span::raw(percent),
        ]),
        Line::from(second),
    ]
}

/// Returns the areas of the progress of a conversion, if one runs, and of the preview.
fn parts_below(model: &Model, below: Rect) -> (Rect, Rect) {
    layout::cut_top(below, if model.screens.convert.work.is_some() { 4 } else { 0 })
}

fn preview_lines(model: &Model, width: usize) -> Vec<Line<'static>> {
    let theme = &model.theme;
    let preview = match &model.screens.convert.preview {
        Preview::None => {
            let text = "Choose a source and a new folder. This preview then lists every tensor. Nothing is written \
                        until you confirm.";
            let mut lines: Vec<_> = text::wrap(text, width).into_iter().map(Line::from).collect();
            lines.push(Line::default());
            lines.extend(facts_lines(model, SOURCES, width));
            return lines;
        }
        Preview::Requested(_) => return vec![Line::styled("Reading tensor headers…", theme.faint)],
        Preview::Refused(failure) => return failure_lines(model, failure, width),
        Preview::Made(target, to) => return made_lines(model, target, *to, width),
        Preview::Shown(preview) => preview,
    };
    let mut lines = Vec::new();
    match &preview.refusal {
        Some(failure) => {
            lines.extend(failure_lines(model, failure, width));
            let mut line = Vec::new();
            if preview.in_the_way {
                line.extend(hint(model, &model.keys.name(Context::Convert, Action::Replace), "replace it"));
                line.push(Span::raw("   "));
            }
            line.push(Span::styled(preview.command.clone(), theme.faint));
            lines.push(Line::from(line));
        }
        None if model.screens.convert.work.is_none() => {
            if preview.in_the_way {
                lines.push(Line::styled("Replaces the existing conversion in that folder.", theme.warn));
            }
            let mut line = hint(model, &model.keys.name(Context::Convert, Action::Convert), "convert as shown");
            if preview.in_the_way {
                line.push(Span::raw("   "));
                line.extend(hint(model, &model.keys.name(Context::Convert, Action::Replace), "do not replace"));
            }
            line.push(Span::styled(format!("   {}", preview.command), theme.faint));
            lines.push(Line::from(line));
        }
        None => {}
    }
    if !lines.is_empty() {
        lines.push(Line::default());
    }
    lines.extend(facts_lines(model, preview.facts.iter().map(|(name, value)| (name, value)), width));
    lines.push(Line::default());
    let counts = preview.rows.iter().map(|row| row.count.to_string().len()).max().unwrap_or(1);
    let half = width.saturating_sub(counts + 5) / 2;
    let longest = preview.rows.iter().map(|row| text::width(&row.source)).max().unwrap_or(0).min(half);
    for row in &preview.rows {
        let source = text::fit_end(&text::clean(&row.source), longest, model.symbols.ellipsis);
        let pad = " ".repeat(longest.saturating_sub(text::width(&source)));
        let style = if row.wrong { theme.bad } else { Style::new() };
        lines.push(Line::from(vec![
            Span::styled(format!("{:>counts$}  ", row.count), theme.faint),
            Span::styled(format!("{source}{pad}"), style),
            Span::styled(format!(" {} ", model.symbols.arrow), theme.faint),
            Span::styled(text::clean(&row.target), style),
        ]));
    }
    lines
}

/// Returns the lines that follow a conversion: the output folder and the commands to use it.
fn made_lines(model: &Model, target: &Utf8PathBuf, to: ConvertForm, width: usize) -> Vec<Line<'static>> {
    let next = match to {
        ConvertForm::Internal => ("train", format!("vidtui launch RECIPE --init {target}")),
        ConvertForm::Diffusers => ("load", format!("AutoModel.from_pretrained(\"{target}\")")),
        _ => ("merge", format!("vidtui convert MODEL OUT --to diffusers --merge {target}")),
    };
    let mut facts = vec![next, ("inspect", format!("vidtui inspect {target}"))];
    if to == ConvertForm::Internal {
        facts.push(("recipe", format!("start the recipe with base = \"{target}/model.toml\" to use its model sizes")));
    }
    let wrote = text::wrap(&text::clean(&format!("Wrote {target}")), width);
    let mut lines: Vec<_> = wrote.into_iter().map(|line| Line::styled(line, model.theme.good)).collect();
    lines.push(Line::default());
    lines.extend(facts_lines(model, facts, width));
    lines
}

/// Returns the lines of a table with names in the first column and wrapped values in the second.
fn facts_lines<N: AsRef<str>, V: AsRef<str>>(
    model: &Model,
    facts: impl IntoIterator<Item = (N, V)>,
    width: usize,
) -> Vec<Line<'static>> {
    let facts: Vec<(N, V)> = facts.into_iter().collect();
    let names = facts.iter().map(|(name, _)| text::width(name.as_ref())).max().unwrap_or(0);
    let mut lines = Vec::new();
    for (name, value) in &facts {
        let pad = " ".repeat(names - text::width(name.as_ref()) + 2);
        let value = text::wrap(&text::clean(value.as_ref()), width.saturating_sub(names + 2));
        for (n, part) in value.into_iter().enumerate() {
            let name = if n == 0 { format!("{}{pad}", name.as_ref()) } else { " ".repeat(names + 2) };
            lines.push(Line::from(vec![Span::styled(name, model.theme.faint), Span::raw(part)]));
        }
    }
    lines
}
