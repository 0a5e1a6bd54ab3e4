//! The GPUs of the Node screen: one row of meters per GPU, and in the rows below, the history of each quantity under
//! its meter.

use crate::fleet::gpu_value::{GpuValue, is_current};
use crate::fleet::{GpuMoment, NodeView, Point};
use crate::model::Model;
use crate::run_state::short_id;
use crate::screens::{history_cursor, node_table};
use crate::text;
use crate::widgets::{history_chart, write};
use cluster::fault::FaultSeverity;
use cluster::{GpuSample, Reading};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use rundir::RunId;
use std::borrow::Cow;

/// Width of the GPU index and the mark of a fault.
const INDEX: usize = 6;
const GAP: usize = 2;

/// A quantity with a meter, and its values in the history.
type Meter = (GpuValue, fn(GpuMoment) -> f32);

/// The quantities with a meter. Only a wide screen has a meter of the last one.
static METERS: [Meter; 4] = [
    (GpuValue::Utilization, GpuMoment::util_pct),
    (GpuValue::Memory, GpuMoment::mem_share),
    (GpuValue::Power, GpuMoment::power_w),
    (GpuValue::Temperature, GpuMoment::temp_c),
];

/// The widths of the columns of the GPU table.
pub struct GpuColumns {
    /// The width of the bar of each meter.
    bar: usize,
    /// The width of the text beside the bar of each meter.
    texts: Vec<usize>,
    /// The width of the part with clock and notes, and with the temperature if it has no meter.
    right: usize,
}

impl GpuColumns {
    /// Divides the width of the screen among the columns.
    pub fn new(model: &Model, view: &NodeView, width: usize) -> Self {
        let (meters, right) = match width {
            140.. => (4, 30),
            120.. => (3, 36),
            96.. => (3, 15),
            _ => (3, 6),
        };
        let shown: Vec<Cow<'_, GpuSample>> = view.gpus().iter().map(|gpu| at_cursor(model, view, gpu)).collect();
        let text = |(value, _): &Meter| {
            let widths = shown.iter().map(|gpu| text::width(&meter_text(model, *value, gpu)));
            widths.max().unwrap_or(0)
        };
        let texts: Vec<usize> = METERS[..meters].iter().map(text).collect();
        let fixed = INDEX + right + meters * (1 + GAP) + texts.iter().sum::<usize>();
        Self { bar: width.saturating_sub(fixed) / meters, texts, right }
    }

    fn meters(&self) -> &'static [Meter] {
        &METERS[..self.texts.len()]
    }

    /// Returns whether there is a meter of the temperature.
    pub fn has_all_meters(&self) -> bool {
        self.texts.len() == METERS.len()
    }

    /// Returns the x offset and the width of a meter.
    fn meter(&self, number: usize) -> (usize, usize) {
        let width = |number: usize| self.bar + 1 + self.texts[number];
        (INDEX + (0..number).map(|before| width(before) + GAP).sum::<usize>(), width(number))
    }

    /// Returns the x offset and the width of the history at an x offset, if there is one.
    pub fn history_at(&self, x: usize) -> Option<(usize, usize)> {
        (0..self.texts.len()).map(|number| self.meter(number)).find(|(at, width)| (*at..at + width).contains(&x))
    }

    fn right(&self) -> usize {
        let (at, width) = self.meter(self.texts.len() - 1);
        at + width + GAP
    }

    /// Returns the names of the columns, on a wide screen with the scales of the meters.
    pub fn heading(&self, view: &NodeView) -> String {
        let mut heading = "gpu".to_owned();
        for (number, (value, _)) in self.meters().iter().enumerate() {
            let (at, width) = self.meter(number);
            let name = value.name_and_scale(view.gpus().iter());
            let is_shown = self.has_all_meters() && text::width(&name) <= width;
            heading += &" ".repeat(at.saturating_sub(text::width(&heading)));
            heading += if is_shown { name.as_str() } else { &value.word()[..value.word().len().min(width)] };
        }
        heading += &" ".repeat(self.right().saturating_sub(text::width(&heading)));
        heading
            + match self.right {
                _ if self.has_all_meters() => "   clock",
                15.. => " temp     clock",
                _ => " temp",
            }
    }
}

/// Returns the number of history rows per GPU so that all GPUs and the `others` rows fit. A tall screen has at least
/// two rows per GPU, and the list scrolls if it is long.
pub fn history_rows(gpus: usize, others: usize, room: usize) -> usize {
    let most = if gpus <= 2 { 8 } else { 4 };
    let least = if room >= 30.max(3 * gpus) { 2 } else { 0 };
    (room.saturating_sub(others) / gpus.max(1)).saturating_sub(1).clamp(least, most)
}

/// Returns the values of a GPU at the cursor; the newest sample if there is no cursor. Values without a history are absent at the
/// cursor.
fn at_cursor<'a>(model: &Model, view: &NodeView, gpu: &'a GpuSample) -> Cow<'a, GpuSample> {
    let Some(t) = history_cursor::time(model) else { return Cow::Borrowed(gpu) };
    let moment = view.history.gpu_at(gpu.index, t);
    let reading = |value: f32| if value.is_finite() { Reading::Value(f64::from(value)) } else { Reading::default() };
    let total = gpu.mem_total_mib.value().filter(|_| moment.mem_share().is_finite());
    let used = total.map(|mib| (f64::from(moment.mem_share()) * mib as f64) as u64);
    Cow::Owned(GpuSample {
        power_w: reading(moment.power_w()),
        util_pct: reading(moment.util_pct()),
        temp_c: reading(moment.temp_c()),
        mem_used_mib: used.map_or_else(Reading::default, Reading::Value),
        sm_clock_mhz: Reading::default(),
        ..gpu.clone()
    })
}

/// Draws a GPU: its meters in the first row, with the values at the cursor if there is one, and its history in the others.
pub fn draw(model: &Model, view: &NodeView, gpu: &GpuSample, columns: &GpuColumns, buf: &mut Buffer, area: Rect) {
    write(model, buf, area, meters(model, view, &at_cursor(model, view, gpu), columns));
    let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if below.height == 0 {
        return;
    }
    let is_old = !is_current(view);
    for (number, (value, of)) in columns.meters().iter().enumerate() {
        let (at, width) = columns.meter(number);
        let plot = Rect { x: below.x + at as u16, width: width as u16, ..below };
        let ink = if is_old { model.theme.faint } else { model.theme.lines[number] };
        // The history of memory has shares.
        let (least, most) = if *value == GpuValue::Memory { (0.0, 1.0) } else { value.scale(gpu) };
        let points: Box<dyn Iterator<Item = Point>> = Box::new(view.history.gpu_points(gpu.index, *of));
        let scale = (least as f32, most as f32);
        history_chart::draw(model, buf, plot, model.screens.nodes.window.seconds(), scale, vec![(points, ink)]);
        history_cursor::draw(model, buf, plot);
    }
    if columns.right > 15 {
        let right = Rect { x: below.x + columns.right() as u16, width: columns.right as u16, ..below };
        let notes = notes(model, view, gpu, columns.right);
        for (y, line) in (right.top()..right.bottom()).zip(notes) {
            write(model, buf, Rect { y, height: 1, ..right }, line);
        }
    }
}

fn meters(model: &Model, view: &NodeView, gpu: &GpuSample, columns: &GpuColumns) -> Line<'static> {
    let is_old = !is_current(view);
    // Outliers are those of the newest samples.
    let is_outlier =
        |value: GpuValue| !is_old && history_cursor::time(model).is_none() && model.fleet.is_outlier(value, gpu);
    let plain = if is_old { model.theme.faint } else { Style::new() };
    let fault = view.faults.iter().find(|fault| fault.gpu == Some(gpu.index));
    let mark = fault.map(|fault| node_table::fault_sign(model, fault.severity));
    let (sign, sign_style) = mark.unwrap_or((" ", plain));
    let mut line =
        vec![Span::styled(format!("{:>3} ", gpu.index), plain), Span::styled(format!("{sign} "), sign_style)];
    for ((value, _), text_width) in columns.meters().iter().zip(&columns.texts) {
        let text = meter_text(model, *value, gpu);
        let share = value.share(gpu);
        let ink = if is_old { model.theme.faint } else { share.map_or(plain, |share| model.theme.ramp_at(share)) };
        // A meter is full only near the limit.
        let full = share.map_or(0, |share| (share * columns.bar as f64 + 0.25) as usize).min(columns.bar);
        line.push(Span::styled(model.symbols.bar_done.repeat(full), ink));
        line.push(Span::styled(model.symbols.bar_open.repeat(columns.bar - full), model.theme.faint));
        let style = if is_outlier(*value) { model.theme.warn } else { plain };
        let pad = text_width.saturating_sub(text::width(&text)) + 1;
        line.push(Span::raw(" ".repeat(pad)));
        line.push(Span::styled(text, style));
        line.push(Span::raw(" ".repeat(GAP)));
    }
    let reading = |value: Option<f64>, unit: &str| match value {
        Some(value) => format!("{value:.0} {unit}"),
        None => model.symbols.none.to_owned(),
    };
    let clock = format!("{:>8}", reading(gpu.sm_clock_mhz.value(), "MHz"));
    if columns.has_all_meters() {
        line.push(Span::styled(clock, plain));
        line.push(Span::styled(link_and_fan(model, gpu), if is_old { plain } else { model.theme.faint }));
        return Line::from(line);
    }
    let temp = format!("{:>5}", reading(gpu.temp_c.value(), "°C"));
    line.push(Span::styled(temp, if is_outlier(GpuValue::Temperature) { model.theme.warn } else { plain }));
    if columns.right >= 15 {
        line.push(Span::styled(format!("  {clock}"), plain));
    }
    Line::from(line)
}

/// Returns the generation and lanes of the PCIe link and the fan speed, as far as the GPU reports them.
fn link_and_fan(model: &Model, gpu: &GpuSample) -> String {
    let times = if model.symbols.braille { "×" } else { "x" };
    let link = gpu.pcie_gen.value().zip(gpu.pcie_lanes.value());
    let link = link.map_or_else(String::new, |(generation, lanes)| format!("  PCIe {generation} {times}{lanes}"));
    let fan = gpu.fan_pct.value().map_or_else(String::new, |pct| format!("  fan {pct:.0} %"));
    link + &fan
}

fn meter_text(model: &Model, value: GpuValue, gpu: &GpuSample) -> String {
    let none = || model.symbols.none.to_owned();
    match value {
        GpuValue::Utilization if gpu.mig => "MIG".to_owned(),
        GpuValue::Memory => match (gpu.mem_used_mib.value(), gpu.mem_total_mib.value()) {
            (Some(used), Some(total)) => node_table::of_memory(used, total),
            (Some(used), None) => units::short_size(used << 20),
            _ if gpu.shares_memory() => "the node's".to_owned(),
            _ => none(),
        },
        GpuValue::Power => match (gpu.power_w.value(), gpu.power_limit_w.value()) {
            (Some(power), Some(limit)) => format!("{power:.0}/{limit:.0} W"),
            (Some(power), None) => format!("{power:.0} W"),
            _ => none(),
        },
        _ => value.of(gpu).map_or_else(none, |reading| value.shown(reading)),
    }
}

/// Returns the faults of a GPU, the reason why its clocks are low, and the owners of its processes.
fn notes(model: &Model, view: &NodeView, gpu: &GpuSample, width: usize) -> Vec<Line<'static>> {
    let cut = |text: &str| text::fit(text, width, model.symbols.ellipsis);
    let mut notes = Vec::new();
    let faults = view.faults.iter().filter(|fault| fault.gpu == Some(gpu.index));
    notes.extend(faults.map(|fault| {
        let style = if fault.severity == FaultSeverity::Bad { model.theme.bad } else { model.theme.warn };
        Line::styled(cut(&fault.what), style)
    }));
    // A worrying throttle reason is already listed as a fault.
    let reasons = gpu.throttle_reasons.value().filter(|reasons| reasons.is_slowed() && !reasons.is_worrying());
    notes.extend(reasons.map(|reasons| Line::styled(cut(&reasons.to_string()), model.theme.faint)));
    for process in &gpu.processes {
        let Some(owner) = &process.owner else { continue };
        let run = owner.run.as_deref().map(|run| match RunId::parse(run) {
            Ok(id) => short_id(&id).to_owned(),
            Err(_) => run.to_owned(),
        });
        let rank = owner.rank.map(|rank| format!("rank {rank}"));
        let facts: Vec<String> = [rank, Some(owner.user.clone()), run].into_iter().flatten().collect();
        notes.push(Line::styled(cut(&text::clean(&facts.join(" "))), model.theme.faint));
    }
    notes
}
