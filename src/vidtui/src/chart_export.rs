//! Draws charts into SVG and PNG files with plotters, one panel per group of curves.
//!
//! A chart is plain data from the caller: this file does not depend on runs and their metrics.

use camino::Utf8Path;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use rundir::{ErrorCode, Failure};
use std::collections::BTreeSet;
use std::error::Error;
use std::ops::Range;
use std::sync::Once;
use units::terminal::printable;
use units::{Unit, ticks};

/// Pixels of one panel. The height of a chart grows with the number of panels.
const PANEL: (u32, u32) = (1200, 420);
/// Pixels above the first panel for the title.
const HEADER: u32 = 76;
/// Pixels above the axes of a panel for its legend.
const LEGEND: u32 = 34;
/// Pixels left of the axes of a panel.
const LEFT: u32 = 116;
/// Pixels below the last panel for the legend of the marks.
const FOOTER: u32 = 32;
/// The number of groups into which the points of a long curve are divided: more than a panel has columns of pixels. Each group keeps its
/// extremes.
const COLUMNS: usize = 1600;

const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x2b, 0x38);
const FAINT: RGBColor = RGBColor(0x6b, 0x75, 0x85);
const GRID: RGBColor = RGBColor(0xe4, 0xe8, 0xee);
const BAD: RGBColor = RGBColor(0xd5, 0x2b, 0x1e);
/// The palette of Okabe and Ito, which is distinguishable with any colour vision. Darkest first, for a white background.
/// The last two are added for comparisons of eight runs.
const PALETTE: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x33, 0x22, 0x88),
    RGBColor(0x88, 0x88, 0x22),
];

/// A chart to draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The first line: run and stage.
    pub title: String,
    /// The second line: id, progress and ranks.
    pub subtitle: String,
    /// The label of the x axis.
    pub x_label: String,
    /// The unit of the x axis.
    pub x_unit: Unit,
    /// The panels from top to bottom. They share the x axis.
    pub panels: Vec<Panel>,
    /// The moments that all panels mark, the least important kind first.
    pub marks: Vec<MarkGroup>,
}

/// Moments of one kind: a thin vertical line for each.
#[derive(Debug, Clone, PartialEq)]
pub struct MarkGroup {
    /// The letter above each line.
    pub letter: &'static str,
    /// The name in the legend.
    pub label: &'static str,
    /// The colour of the lines.
    pub tone: Tone,
    /// The positions on the x axis. Those beyond the curves are drawn at the edge.
    pub at: Vec<f64>,
}

/// The colour of marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// A success.
    Good,
    /// A result.
    Result,
    /// A change of the run.
    Change,
    /// A warning.
    Warn,
    /// A failure.
    Bad,
}

impl Tone {
    fn colour(self) -> RGBColor {
        match self {
            Self::Good => PALETTE[2],
            Self::Result => PALETTE[3],
            Self::Change => PALETTE[0],
            Self::Warn => PALETTE[5],
            Self::Bad => BAD,
        }
    }
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// The label of the y axis.
    pub label: String,
    /// The unit of the y axis.
    pub unit: Unit,
    /// The scale of the y axis.
    pub scale: Scale,
    /// The curves. The first one is drawn first, below the others.
    pub curves: Vec<Curve>,
}

/// One line of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The name in the legend.
    pub label: String,
    /// The points in order of x.
    pub points: Vec<Point>,
    /// The drawing style.
    pub weight: Weight,
}

/// A position on the x axis and a value; `None` is a gap.
pub type Point = (f64, Option<f64>);

/// The scale of a y axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic. Values that are not positive do not affect the range, and are drawn on the lower edge.
    Log,
}

/// The style of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// The values, or their average.
    Full,
    /// The values under a smoothed curve.
    Raw,
    /// Values of steps that a later attempt repeated.
    Superseded,
}

/// Draws `chart` into the file `to` in the format of its extension. The file is written atomically.
///
/// # Errors
/// The extension is neither `.svg` nor `.png`, the file cannot be written, or there is nothing to draw.
pub fn write(chart: &Chart, to: &Utf8Path) -> Result<(), Failure> {
    let cannot = |code, why: String, fix: &str| Failure::new(code, format!("cannot export to {to}"), why, fix);
    let drawable = |curve: &Curve| curve.points.iter().any(|(_, value)| value.is_some());
    if !chart.panels.iter().any(|panel| panel.curves.iter().any(drawable)) {
        return Err(cannot(
            ErrorCode::RunNotStarted,
            "no logged step has a value in this chart".into(),
            "wait for the first step, or choose other steps with --from and --to",
        ));
    }
    let size = size(chart);
    let bytes = match to.extension() {
        Some("svg") => svg(chart, size),
        Some("png") => png(chart, size),
        other => {
            let why = format!("'{}' is not a picture format", other.unwrap_or_default());
            return Err(cannot(ErrorCode::InvalidArgument, why, "end the file name in .svg or .png"));
        }
    }
    .map_err(|error| cannot(ErrorCode::Internal, format!("drawing failed: {error}"), "export a .csv table instead"))?;
    rundir::write_atomic(to, &bytes).map_err(Failure::from)
}

/// Draws a chart as SVG for an HTML page. A chart without a title has no header.
///
/// # Errors
/// The drawing library fails.
pub fn to_svg(chart: &Chart) -> Result<String, Failure> {
    let drawn = svg(chart, size(chart)).map_err(|error| error.to_string());
    drawn
        .and_then(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()))
        .map_err(|why| Failure::new(ErrorCode::Internal, "cannot draw a chart", why, "export a .csv table instead"))
}

/// Returns width and height of the picture of a chart, in pixels.
fn size(chart: &Chart) -> (u32, u32) {
    (PANEL.0, header_height(chart) + PANEL.1 * chart.panels.len() as u32 + footer_height(chart))
}

fn header_height(chart: &Chart) -> u32 {
    if chart.title.is_empty() { 0 } else { HEADER }
}

fn footer_height(chart: &Chart) -> u32 {
    if chart.marks.is_empty() { 0 } else { FOOTER }
}

type Drawn<T = ()> = Result<T, Box<dyn Error>>;

fn svg(chart: &Chart, size: (u32, u32)) -> Drawn<Vec<u8>> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    draw(chart, &area)?;
    drop(area);
    // Titles and legends have names from files.
    Ok(printable(&text).into_owned().into_bytes())
}

fn png(chart: &Chart, size: (u32, u32)) -> Drawn<Vec<u8>> {
    let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
    let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
    draw(chart, &area)?;
    drop(area);
    encode_png(&pixels, size)
}

fn encode_png(pixels: &[u8], (width, height): (u32, u32)) -> Drawn<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(bytes)
}

fn draw<B: DrawingBackend>(chart: &Chart, area: &DrawingArea<B, Shift>) -> Drawn
where
    B::ErrorType: 'static,
{
    install_font();
    area.fill(&WHITE)?;
    let (charts, footer) = area.split_vertically(area.dim_in_pixel().1.saturating_sub(footer_height(chart)));
    let (header, panels) = charts.split_vertically(header_height(chart));
    header.draw(&Text::new(chart.title.clone(), (28, 20), (FONT, 26).into_font().color(&INK)))?;
    header.draw(&Text::new(chart.subtitle.clone(), (28, 56), (FONT, 17).into_font().color(&FAINT)))?;
    let x = Axis { range: x_range(chart), unit: chart.x_unit, scale: Scale::Linear };
    for (panel, area) in chart.panels.iter().zip(panels.split_evenly((chart.panels.len(), 1))) {
        let y = Axis { range: y_range(panel), unit: panel.unit, scale: panel.scale };
        draw_panel(panel, &chart.marks, &chart.x_label, x.clone(), y, &area)?;
    }
    draw_legend_of_marks(&chart.marks, &footer)?;
    area.present()?;
    Ok(())
}

fn draw_panel<B: DrawingBackend>(
    panel: &Panel,
    marks: &[MarkGroup],
    x_label: &str,
    x: Axis,
    y: Axis,
    area: &DrawingArea<B, Shift>,
) -> Drawn
where
    B::ErrorType: 'static,
{
    let (x_labels, y_labels) = (x.labels(), y.labels());
    let (across, heights) = (x.clone(), y.range.clone());
    let mut axes = ChartBuilder::on(area)
        .margin(12)
        .margin_top(LEGEND)
        .margin_right(36)
        .x_label_area_size(52)
        .y_label_area_size(LEFT - 12)
        .build_cartesian_2d(x, y)?;
    axes.configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 17).into_font().color(&INK))
        .x_desc(x_label)
        .y_desc(panel.label.as_str())
        .x_label_formatter(&|value| label_at(&x_labels, *value))
        .y_label_formatter(&|value| label_at(&y_labels, *value))
        .draw()?;
    draw_marks(marks, &across, &heights, &mut axes)?;
    let mut colours = PALETTE.iter().cycle();
    let mut legend = Vec::new();
    for curve in &panel.curves {
        let style = match curve.weight {
            Weight::Full => colours.next().copied().unwrap_or(INK).stroke_width(2),
            Weight::Raw => FAINT.mix(0.5).stroke_width(1),
            Weight::Superseded => PALETTE[3].mix(0.7).stroke_width(1),
        };
        draw_curve(curve, style, &heights, &mut axes)?;
        // In a comparison, the raw values under a smoothed curve have no label and no legend entry.
        if !curve.label.is_empty() {
            legend.push((curve.label.as_str(), style));
        }
    }
    if legend.len() > 1 { draw_legend(&legend, area) } else { Ok(()) }
}

/// Draws the legend in one line above the axes.
fn draw_legend<B: DrawingBackend>(entries: &[(&str, ShapeStyle)], area: &DrawingArea<B, Shift>) -> Drawn
where
    B::ErrorType: 'static,
{
    let style = (FONT, 15).into_font().color(&INK);
    let mut right = PANEL.0 as i32 - 36;
    let gap = if entries.len() > 4 { 40 } else { 56 };
    for (label, line) in entries.iter().rev() {
        let (width, _) = area.estimate_text_size(label, &style)?;
        let left = right - width as i32;
        area.draw(&Text::new(*label, (left, 8), style.clone()))?;
        area.draw(&PathElement::new([(left - 32, 13), (left - 8, 13)], line.stroke_width(line.stroke_width + 1)))?;
        right = left - gap;
    }
    Ok(())
}

/// Draws a thin vertical line for each mark. Above the line is its letter, if there is room.
fn draw_marks<'a, B: DrawingBackend + 'a>(
    marks: &[MarkGroup],
    x: &Axis,
    heights: &Range<f64>,
    axes: &mut ChartContext<'a, B, Cartesian2d<Axis, Axis>>,
) -> Drawn
where
    B::ErrorType: 'static,
{
    /// The least number of pixels between two letters.
    const LETTER: u32 = 10;
    let pixel = |at: f64| (x.along(at) * f64::from(PANEL.0)) as u32;
    let mut taken = BTreeSet::new();
    for group in marks.iter().rev() {
        let mut at: Vec<f64> = group.at.iter().map(|at| at.clamp(x.range.start, x.range.end)).collect();
        at.sort_by(f64::total_cmp);
        at.dedup_by_key(|at| pixel(*at));
        let colour = group.tone.colour();
        let line = |at: &f64| -> PathElement<(f64, f64)> {
            PathElement::new([(*at, heights.start), (*at, heights.end)], colour.mix(0.5).stroke_width(1))
        };
        axes.draw_series(at.iter().map(line))?;
        at.retain(|at| {
            let pixel = pixel(*at);
            let is_free = taken.range(pixel.saturating_sub(LETTER)..pixel + LETTER).next().is_none();
            is_free && taken.insert(pixel)
        });
        let style = (FONT, 13).into_font().color(&colour).pos(Pos::new(HPos::Center, VPos::Bottom));
        axes.draw_series(at.iter().map(|at| Text::new(group.letter, (*at, heights.end), style.clone())))?;
    }
    Ok(())
}

/// Draws the letters and names of the marks in one line.
fn draw_legend_of_marks<B: DrawingBackend>(marks: &[MarkGroup], area: &DrawingArea<B, Shift>) -> Drawn
where
    B::ErrorType: 'static,
{
    let mut left = LEFT as i32;
    for group in marks {
        let text = format!("{} {}", group.letter, group.label);
        let style = (FONT, 15).into_font().color(&group.tone.colour());
        let (width, _) = area.estimate_text_size(&text, &style)?;
        area.draw(&Text::new(text, (left, 4), style))?;
        left += width as i32 + 28;
    }
    Ok(())
}

fn draw_curve<'a, B: DrawingBackend + 'a>(
    curve: &Curve,
    style: ShapeStyle,
    heights: &Range<f64>,
    axes: &mut ChartContext<'a, B, Cartesian2d<Axis, Axis>>,
) -> Drawn
where
    B::ErrorType: 'static,
{
    for piece in thinned(&curve.points).split(|(_, value)| value.is_none()) {
        // Superseded points, and values that are not positive on a logarithmic axis, do not define the range and may lie outside it.
        let inside = |value: f64| value.clamp(heights.start, heights.end);
        let piece: Vec<(f64, f64)> = piece.iter().filter_map(|&(step, value)| Some((step, inside(value?)))).collect();
        match piece[..] {
            [] => {}
            [lonely] => drop(axes.draw_series([Circle::new(lonely, 2, style.filled())])?),
            _ => drop(axes.draw_series(LineSeries::new(piece, style))?),
        }
    }
    // A value that is not finite is a gap. A mark on the upper edge shows that the step was logged.
    let lost = curve.points.iter().filter(|(_, value)| value.is_none()).map(|&(step, _)| (step, heights.end));
    axes.draw_series(lost.map(|at| TriangleMarker::new(at, 6, BAD.filled())))?;
    Ok(())
}

/// An axis with the tick values and labels of the console's charts.
#[derive(Clone)]
struct Axis {
    range: Range<f64>,
    unit: Unit,
    scale: Scale,
}

impl Axis {
    fn labels(&self) -> Vec<(f64, String)> {
        ticks(self.range.start, self.range.end, 7, self.unit, self.scale == Scale::Log).marks
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    fn along(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        match self.scale {
            Scale::Linear => (value - start) / (end - start),
            Scale::Log => (value / start).ln() / (end / start).ln(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.along(*value) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels().into_iter().map(|(value, _)| value).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {}

fn label_at(labels: &[(f64, String)], value: f64) -> String {
    labels.iter().find(|(at, _)| *at == value).map(|(_, label)| label.clone()).unwrap_or_default()
}

/// Keeps the first, lowest, highest and last point of each group, and every gap, so that spikes stay visible.
fn thinned(points: &[Point]) -> Vec<Point> {
    if points.len() <= 4 * COLUMNS {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(4 * COLUMNS);
    for column in points.chunks(points.len().div_ceil(COLUMNS)) {
        let by_value =
            |&a: &usize, &b: &usize| column[a].1.partial_cmp(&column[b].1).unwrap_or(std::cmp::Ordering::Equal);
        let finite = || (0..column.len()).filter(|&i| column[i].1.is_some());
        let mut chosen: Vec<usize> = (0..column.len()).filter(|&i| column[i].1.is_none()).collect();
        chosen.extend([0, column.len() - 1]);
        chosen.extend(finite().min_by(by_value));
        chosen.extend(finite().max_by(by_value));
        chosen.sort_unstable();
        chosen.dedup();
        kept.extend(chosen.into_iter().map(|i| column[i]));
    }
    kept
}

fn x_range(chart: &Chart) -> Range<f64> {
    let steps =
        chart.panels.iter().flat_map(|panel| &panel.curves).flat_map(|curve| &curve.points).map(|&(step, _)| step);
    let (low, high) = extent(steps).unwrap_or((0.0, 1.0));
    if low == high { low - 1.0..high + 1.0 } else { low..high }
}

fn y_range(panel: &Panel) -> Range<f64> {
    // Superseded points can be outliers. They define the range only if there are no others.
    let values = |counts: fn(Weight) -> bool| {
        let curves = panel.curves.iter().filter(move |curve| counts(curve.weight));
        let values = curves.flat_map(|curve| &curve.points).filter_map(|&(_, value)| value);
        extent(values.filter(|value| panel.scale == Scale::Linear || *value > 0.0))
    };
    let (low, high) = values(|weight| weight != Weight::Superseded).or_else(|| values(|_| true)).unwrap_or((0.1, 1.0));
    if panel.scale == Scale::Log {
        return low / 1.15..high * 1.15;
    }
    if (low, high) == (0.0, 0.0) {
        return 0.0..1.0;
    }
    // Add a margin above and below. That of a constant curve is large, so that the labels of the axis differ.
    let room = if low == high { low.abs() * 0.5 } else { (high - low) * 0.06 };
    // If no value is negative, the margin does not extend below zero.
    let floor = if low >= 0.0 { (low - room).max(0.0) } else { low - room };
    floor..high + room
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    })
}

fn install_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // This fails only if the bytes are not a font. The tests draw with this font, so they would fail too.
        let _ = register_font(FONT, FontStyle::Normal, include_bytes!("../../../assets/DejaVuSans.ttf"));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_curve(points: Vec<Point>) -> Chart {
        let curve = Curve { label: "loss".into(), points, weight: Weight::Full };
        let panels = vec![Panel { label: "loss".into(), unit: Unit::Plain, scale: Scale::Linear, curves: vec![curve] }];
        let (title, subtitle) = ("demo".into(), "2 ranks".into());
        Chart { title, subtitle, x_label: "step".into(), x_unit: Unit::Step, panels, marks: Vec::new() }
    }

    #[test]
    fn the_names_in_an_svg_are_escaped() {
        let mut chart = one_curve(vec![(1.0, Some(1.0)), (2.0, Some(2.0))]);
        let hostile = "<script>\u{1b}]0;x\u{7}";
        (chart.title, chart.panels[0].label) = (hostile.into(), hostile.into());
        chart.panels[0].curves[0].label = hostile.into();
        let svg = to_svg(&chart).unwrap();
        assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script"), "{svg}");
        assert!(!svg.contains('\u{1b}') && !svg.contains('\u{7}'), "{svg}");
    }

    #[test]
    fn a_thinned_curve_keeps_its_spike_and_its_gap() {
        let mut points: Vec<_> = (0..100_000).map(|i| (i as f64, Some(1.0))).collect();
        points[54_321].1 = Some(99.0);
        points[77_777].1 = None;
        let kept = thinned(&points);
        assert!(kept.len() < 8 * COLUMNS, "{}", kept.len());
        assert!(kept.contains(&(54_321.0, Some(99.0))));
        assert!(kept.contains(&(77_777.0, None)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn an_svg_has_title_axes_and_legend_as_text() {
        let mut chart = one_curve((0..50).map(|i| (f64::from(i), Some(1.0 / f64::from(i + 1)))).collect());
        let old = Curve { label: "attempt 1".into(), points: vec![(3.0, Some(0.2))], weight: Weight::Superseded };
        chart.panels[0].curves.push(old);
        let text = String::from_utf8(svg(&chart, (1200, 504)).unwrap()).unwrap();
        for part in ["demo", "2 ranks", "step", "loss", "attempt 1"] {
            assert!(text.contains(part), "{part} is not in the picture");
        }
    }

    #[test]
    fn marks_are_lines_with_letters_and_a_legend() {
        let curve = || one_curve((0..50).map(|i| (f64::from(i), Some(1.0))).collect());
        let at = vec![-5.0, 20.0, 20.001, 20.1];
        let marks = vec![MarkGroup { letter: "r", label: "resume", tone: Tone::Change, at }];
        let drawn = |chart: &Chart| String::from_utf8(svg(chart, size(chart)).unwrap()).unwrap();
        let (plain, marked) = (drawn(&curve()), drawn(&Chart { marks, ..curve() }));
        let lines = |text: &str| text.matches("<polyline").count() + text.matches("<line").count();
        assert_eq!(lines(&marked) - lines(&plain), 3, "two marks share a pixel");
        let letters = marked.lines().filter(|line| line.trim() == "r").count();
        assert_eq!(letters, 2, "two letters would overlap");
        assert!(marked.contains("r resume") && !plain.contains("resume"));
    }

    #[test]
    fn a_png_has_the_size_of_its_panels() {
        let chart = one_curve(vec![(1.0, Some(0.5)), (2.0, None), (3.0, Some(0.4))]);
        let bytes = png(&chart, (1200, 504)).unwrap();
        assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(&bytes[16..24], [0, 0, 0x04, 0xb0, 0, 0, 0x01, 0xf8]);
    }

    #[test]
    fn a_chart_without_points_is_not_written() {
        let failure = write(&one_curve(vec![]), "/nowhere/x.svg".into()).unwrap_err();
        assert_eq!(failure.code, ErrorCode::RunNotStarted);
    }

    #[test]
    fn a_constant_curve_and_a_single_point_have_axes() {
        for points in [vec![(1.0, Some(0.0))], vec![(1.0, Some(2.0)), (2.0, Some(2.0))]] {
            assert!(svg(&one_curve(points), (1200, 504)).is_ok());
        }
    }

    #[test]
    fn a_logarithmic_axis_has_labels_even_within_one_decade() {
        let axis = Axis { range: 0.2..0.8, unit: Unit::Plain, scale: Scale::Log };
        assert_eq!(axis.labels().len(), 2);
        assert!((axis.along(0.4) - 0.5).abs() < 1e-12, "0.4 is in the middle of 0.2 and 0.8");
    }
}
