//! Tests of the chart widget and of the charts of the Run screen.

use crate::fixtures::*;
use crate::series::{Axis, Series, Statistic, Track};
use crate::widgets::line_chart::{ChartLine, LineChart};
use crate::widgets::shared_axis::SharedAxis;
use crate::*;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use rundir::MetricSample;
use units::Unit;

fn draw(series: &Series, symbols: Symbols, change: impl FnOnce(&mut LineChart<'_>)) -> String {
    let (track, style) = (Track::of("loss"), Style::new());
    draw_line(ChartLine { series, track, band: None, label: "loss".into(), mark: 'l', style }, symbols, change)
}

fn draw_line(line: ChartLine<'_>, symbols: Symbols, change: impl FnOnce(&mut LineChart<'_>)) -> String {
    let live = line.series.live();
    let last = live.len().checked_sub(1).map_or(1, |i| live.step(i));
    let lines = [line];
    let axis = SharedAxis {
        x: Axis::Step,
        step_word: "step",
        window: (1.0, last.max(2) as f64),
        cursor: None,
        dragged: None,
        gutter: 0,
        margin: 0,
        labels_from: 6,
        marks_from: u16::MAX,
        symbols,
        theme: Theme::no_color(),
    };
    let mut chart = LineChart { lines: &lines, unit: Unit::Plain, axis, log_y: false, smoothing: None };
    change(&mut chart);
    let mut buf = Buffer::empty(Rect::new(0, 0, 48, 9));
    chart.render(buf.area, &mut buf);
    let row = |y: u16| (0..48).map(|x| buf[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..9).map(row).collect::<Vec<_>>().join("\n")
}

fn series(losses: impl IntoIterator<Item = Option<f64>>) -> Series {
    let mut series = Series::default();
    for (i, loss) in losses.into_iter().enumerate() {
        series.push(&MetricSample { loss, ..sample(1, i as u64 + 1) });
    }
    series
}

#[test]
fn a_line_goes_from_its_first_to_its_last_value() {
    insta::assert_snapshot!(draw(&series((0..=20).map(|i| Some(f64::from(i)))), Symbols::unicode(), |_| {}));
}

#[test]
fn a_gap_is_left_and_marked_where_the_loss_was_not_finite() {
    let losses = (0..40).map(|i| if (15..19).contains(&i) { None } else { Some(f64::from(i * i)) });
    insta::assert_snapshot!(draw(&series(losses), Symbols::unicode(), |_| {}));
}

#[test]
fn one_spike_in_a_hundred_thousand_steps_is_still_drawn() {
    let losses = (0..100_000).map(|i| Some(if i == 61_803 { 9.0 } else { 1.0 }));
    insta::assert_snapshot!(draw(&series(losses), Symbols::unicode(), |_| {}));
}

#[test]
fn a_superseded_attempt_is_dotted() {
    let mut series = series((0..40).map(|i| Some(40.0 - f64::from(i))));
    for step in 20..=25 {
        series.push(&MetricSample { loss: Some(35.0), ..sample(2, step) });
    }
    insta::assert_snapshot!(draw(&series, Symbols::unicode(), |chart| chart.axis.window = (1.0, 40.0)));
}

#[test]
fn without_utf_8_dots_become_punctuation() {
    insta::assert_snapshot!(draw(&series((0..=20).map(|i| Some(f64::from(i)))), Symbols::ascii(), |_| {}));
}

#[test]
fn a_logarithmic_axis_shows_decades() {
    let losses = (0..60).map(|i| Some(10f64.powf(1.0 - f64::from(i) / 20.0)));
    insta::assert_snapshot!(draw(&series(losses), Symbols::unicode(), |chart| chart.log_y = true));
}

#[test]
fn a_constant_is_a_line_in_the_middle() {
    insta::assert_snapshot!(draw(&series((0..20).map(|_| Some(0.5))), Symbols::unicode(), |_| {}));
}

#[test]
fn a_cell_that_the_mean_crosses_has_only_the_dots_of_the_mean() {
    let mut series = Series::default();
    for step in 1..=40 {
        series.push(&MetricSample { mem_gib_by_rank: vec![1.0, 1.0, 4.0], ..sample(1, step) });
    }
    let (track, band) = (Track::MemoryMean, Some((Track::MemoryLowest, Track::MemoryHighest)));
    let line = ChartLine { series: &series, track, band, label: "mean".into(), mark: 'm', style: Style::new() };
    let chart = draw_line(line, Symbols::unicode(), |_| {});
    let dots = |line: &str| line.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).collect::<String>();
    let rows: Vec<String> = chart.lines().map(dots).collect();
    let width = rows[4].chars().count();
    assert_eq!(rows[4..=6], ["⢕", "⠉", "⢕"].map(|dots| dots.repeat(width)), "{chart}");
}

#[test]
fn a_single_sample_is_a_dot() {
    insta::assert_snapshot!(draw(&series([Some(0.5)]), Symbols::unicode(), |chart| chart.axis.window = (0.5, 1.5)));
}

#[test]
fn lines_enter_and_leave_a_zoomed_window_at_its_edges() {
    let zoomed = draw(&series((0..=20).map(|i| Some(f64::from(i)))), Symbols::unicode(), |chart| {
        chart.axis.window = (5.4, 6.6);
    });
    insta::assert_snapshot!(zoomed);
}

#[test]
fn zooming_in_keeps_the_newest_step_and_the_cursor_visible() {
    let mut ui = Ui::on_run(running(83));
    ui.press("+ +");
    let run = ui.model.screens.run.as_ref().unwrap();
    let (low, high) = run.window();
    assert!(high == 83.0 && high - low < 25.0);
    ui.press("PgUp Left Left +");
    let run = ui.model.screens.run.as_ref().unwrap();
    let (low, high) = run.window();
    let cursor = run.view.cursor.unwrap();
    assert!(low <= cursor && cursor <= high, "{low} {cursor} {high}");
    ui.press("0");
    assert_eq!(ui.model.screens.run.as_ref().unwrap().window(), (1.0, 83.0));
}

#[test]
fn the_cursor_stops_at_every_sample_when_zoomed_in() {
    let mut ui = Ui::on_run(running(83));
    ui.press("Enter + + +");
    let mut steps = Vec::new();
    for _ in 0..5 {
        ui.press("Left");
        let run = ui.model.screens.run.as_ref().unwrap();
        steps.push(run.series.live().step(run.cursor_index().unwrap()));
    }
    assert_eq!(steps, [82, 81, 80, 79, 78]);
    assert!(ui.screen().contains("step 78"), "{}", ui.screen());
}

/// Samples of two nodes every five seconds, from before the first step to after the last.
pub(super) fn points(gpus: bool) -> Vec<rundir::NodePoint> {
    let spread = |mean: f64| Some(rundir::Spread { mean, min: mean * 0.8, max: mean * 1.1, of_several: true });
    let at = |i: u32| {
        let t = NOW - 320.0 + 5.0 * f64::from(i);
        let busy = (8..28).contains(&i);
        rundir::NodePoint {
            t,
            util_pct: spread(if busy { 90.0 } else { 0.0 }).filter(|_| gpus),
            power_w: spread(if busy { 620.0 + f64::from(i) } else { 90.0 }).filter(|_| gpus),
            gpu_mem_gib: spread(if busy { 62.0 } else { 1.0 }).filter(|_| gpus),
            temp_c: None,
            cpu_pct: spread(if busy { 80.0 } else { 2.0 }),
            mem_gib: spread(3.0),
            ..rundir::NodePoint::default()
        }
    };
    (0..36).map(at).collect()
}

#[test]
fn power_and_memory_share_the_x_axis_of_the_loss() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::NodePoints(points(true)));
    insta::assert_snapshot!(ui.screen());
    ui.resize(160, 48);
    insta::assert_snapshot!("power_and_memory_under_the_loss_160x48", ui.screen());
    ui.press("x");
    insta::assert_snapshot!("power_and_memory_over_time_160x48", ui.screen());
}

#[test]
fn nodes_without_gpus_show_their_cpu_and_memory() {
    let mut ui = Ui::on_run(running(83));
    ui.run_msg(RunMsg::NodePoints(points(false)));
    insta::assert_snapshot!("nodes_without_gpus_cpu_80x24", ui.screen());
    ui.press("Tab Tab");
    insta::assert_snapshot!("nodes_without_gpus_memory_80x24", ui.screen());
}

#[test]
fn one_node_alone_has_a_mean_and_no_extremes() {
    let mut ui = Ui::on_run(running(83));
    let alone = |point: rundir::NodePoint| {
        let alone = |spread: Option<rundir::Spread>| spread.map(|s| rundir::Spread { of_several: false, ..s });
        rundir::NodePoint { cpu_pct: alone(point.cpu_pct), mem_gib: alone(point.mem_gib), ..point }
    };
    ui.run_msg(RunMsg::NodePoints(points(false).into_iter().map(alone).collect()));
    let nodes = ui.model.screens.run.as_ref().unwrap().series.nodes();
    let Track::Nodes(cpu, _) = Track::of("cpu") else { panic!("nodes sample the CPU") };
    let is_empty = |statistic| nodes.column(Track::Nodes(cpu, statistic)).is_empty();
    assert!(!is_empty(Statistic::Mean) && is_empty(Statistic::Highest) && is_empty(Statistic::Lowest));
}

#[test]
fn the_time_axis_covers_the_samples_of_nodes_too() {
    let mut ui = Ui::on_run(running(83));
    ui.press("x");
    assert_eq!(ui.model.screens.run.as_ref().unwrap().full_range().0, 0.0);
    ui.run_msg(RunMsg::NodePoints(points(true)));
    let run = ui.model.screens.run.as_ref().unwrap();
    let (low, high) = run.full_range();
    assert!(low < -20.0 && high > 150.0, "from the start-up to after the last step: {low} to {high}");
    let series = &run.series;
    // Unix times in an f64 are exact to about 1e-7 s.
    assert!((series.x_at(Axis::Step, series.time_at(Axis::Step, 40.5)) - 40.5).abs() < 1e-5);
}

#[test]
fn node_panels_are_skipped_without_samples() {
    let mut ui = Ui::on_run(running(83));
    ui.press("Tab");
    assert_eq!(ui.model.screens.run.as_ref().unwrap().focus, layout::Panel::Chart(rundir::Chart::LearningRate));
    ui.run_msg(RunMsg::NodePoints(points(true)));
    ui.press("Shift-Tab");
    assert_eq!(ui.model.screens.run.as_ref().unwrap().focus, layout::Panel::Chart(rundir::Chart::NodeMemory));
}

#[test]
fn learning_rates_that_are_equal_share_a_line() {
    let with_ttt = |scale: f64| {
        let mut ui = Ui::on_run(running(0));
        let sample = |step| {
            let usual = sample(1, step);
            MetricSample { lr_ttt: Some(usual.lr * scale), ..usual }
        };
        ui.run_msg(RunMsg::Metrics((1..=83).map(sample).collect()));
        ui.resize(160, 48);
        ui.screen()
    };
    assert!(!with_ttt(1.0).contains("TTT layers") && with_ttt(10.0).contains("TTT layers"));
}

/// Returns the columns of a character in each row between two headings, without the right column of panels.
fn columns_of(screen: &str, from: &str, to: &str, wanted: char) -> Vec<Vec<usize>> {
    let rows = screen.lines().skip_while(|line| !line.contains(from)).skip(1).take_while(|line| !line.contains(to));
    let columns = |line: &str| line.chars().enumerate().filter(|(_, c)| *c == wanted).map(|(at, _)| at).collect();
    rows.map(|line| columns(&line.chars().take(92).collect::<String>())).collect()
}

#[test]
fn one_cursor_crosses_the_lanes_the_marks_and_the_ranks() {
    for keys in ["Left Left Left Left Left Left Left Left", "x Left Left Left Left Left Left Left Left"] {
        let mut ui = Ui::on_run(running(83));
        ui.run_msg(RunMsg::NodePoints(points(true)));
        ui.resize(160, 48);
        ui.press(keys);
        let screen = ui.screen();
        let mark = columns_of(&screen, "Marks", "GPU power", '│');
        let [[cursor]] = mark.iter().map(Vec::as_slice).collect::<Vec<_>>()[..] else { panic!("{mark:?}\n{screen}") };
        for (from, to) in [("Loss", "Marks"), ("GPU power", "GPU utilization"), ("Step time", "Events")] {
            let rows = columns_of(&screen, from, to, '│');
            assert!(rows.iter().any(|row| row.contains(cursor)), "{from} lacks {cursor}: {rows:?}\n{screen}");
        }
        let ranks = |text: &str| text.lines().skip_while(|line| !line.contains("Ranks")).nth(1).unwrap().to_owned();
        ui.press("Tab Tab Tab Tab Tab Tab Tab Tab Tab Tab");
        assert!(ranks(&ui.screen()).chars().skip(95).any(|c| c == '│'), "{}", ui.screen());
    }
}

#[test]
fn lanes_have_the_same_axes_without_samples_of_nodes() {
    let mut ui = Ui::on_run(running(83));
    ui.resize(160, 48);
    let axes = |from, to| columns_of(&ui.screen(), from, to, '│').into_iter().flatten().min().unwrap();
    assert_eq!(axes("Loss", "Marks"), axes("Step time", "Events"));
}

#[test]
fn a_chart_has_three_labels_or_more() {
    for high in [1.3, 2.9, 7.1, 61.0, 99.0, 740.0] {
        let losses = (0..40).map(|i| Some(f64::from(i) / 39.0 * high));
        let chart = draw(&series(losses), Symbols::unicode(), |chart| chart.axis.labels_from = 99);
        assert!(chart.matches('┤').count() >= 3, "{chart}");
    }
}

#[test]
fn a_chart_of_a_constant_leaves_its_rows_to_the_others() {
    let rows = |change: fn(&mut MetricSample)| {
        let mut ui = Ui::on_run(running(0));
        let samples = (1..=83).map(|step| {
            let mut sample = sample(1, step);
            change(&mut sample);
            sample
        });
        ui.run_msg(RunMsg::Metrics(samples.collect()));
        ui.resize(160, 48);
        let screen = ui.screen();
        let title = |line: &&str| line.contains("─ MFU ─");
        let after = screen.lines().skip_while(|line| !title(line)).skip(1);
        after.take_while(|line| !line.contains("─ Weight norm ─")).count()
    };
    assert!(rows(|_| {}) >= 4);
    assert_eq!(rows(|sample| sample.mfu = Some(0.31)), 2);
}

#[test]
fn a_run_that_opens_on_a_large_screen_is_smoothed() {
    let opened = |width, height| {
        let mut ui = Ui::with_runs(vec![running(83)]);
        ui.resize(width, height);
        ui.press("Enter");
        ui.model.screens.run.as_ref().unwrap().smoothing
    };
    assert_eq!((opened(80, 24), opened(160, 48)), (None, Some(0)));
}
