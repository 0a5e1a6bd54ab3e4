//! Shows sampled videos in the terminal, with the graphics protocol of Kitty, iTerm2 or Sixel, or with half blocks.
//!
//! Environment variables identify the terminal; SSH passes on `TERM`. The terminal is not queried, because its answer
//! would arrive among the keys. Inside tmux, graphics work only if the user enables them, so half blocks are the default
//! there.

use camino::Utf8Path;
use image::{DynamicImage, RgbImage};
use ratatui::buffer::Buffer;
use ratatui::layout::{Rect, Size as Cells};
use ratatui::style::Color;
use ratatui::widgets::Widget;
use ratatui_image::Image;
use ratatui_image::protocol::Protocol;
use ratatui_image::protocol::halfblocks::Halfblocks;
use ratatui_image::protocol::iterm2::Iterm2;
use ratatui_image::protocol::kitty::Kitty;
use ratatui_image::protocol::sixel::Sixel;
use rundir::{ErrorCode, Failure};
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use ui::{Clip, Size};
use units::terminal::Escaped;
use video::{CropMode, Frames, Picture};

/// The most frames of a clip: five seconds at 30 frames per second, twenty at the 8 frames per second of CogVideoX. Longer clips are
/// shown to their end with fewer frames per second.
const MAX_FRAMES: usize = 160;
/// The most frames per second: the frame rate of the console. CogVideoX makes 8 or 16.
const MAX_FPS: f64 = 30.0;
/// The size of a cell in pixels where the terminal does not report it.
const CELL: (usize, usize) = (10, 20);

/// The protocol by which a terminal shows pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Graphics {
    /// Kitty's protocol, with Unicode placeholders.
    Kitty,
    /// iTerm2's protocol.
    Iterm2,
    /// Sixel.
    Sixel,
    /// A character per two pixels, in any terminal.
    HalfBlocks,
}

impl Graphics {
    /// Returns the widest picture in pixels. Every frame is sent to the terminal: uncompressed by Kitty's protocol, as PNG by iTerm2's,
    /// and as text by Sixel. At these widths, a frame takes less than 4 ms of CPU.
    fn max_width(self) -> usize {
        match self {
            Graphics::Kitty => 512,
            Graphics::Iterm2 | Graphics::HalfBlocks => 640,
            Graphics::Sixel => 352,
        }
    }
}

/// What this terminal supports: the graphics protocol and 24-bit colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    graphics: Graphics,
    in_tmux: bool,
    is_truecolor: bool,
}

impl Terminal {
    /// Recognizes the terminal by its environment. `VIDTUI_PICTURES` (`kitty`, `iterm2`, `sixel` or `blocks`) overrides it.
    pub fn from_env() -> Self {
        Self::of(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Recognizes only the colours of the terminal, and shows pictures as half blocks, which need no protocol.
    pub fn half_blocks() -> Self {
        Self { graphics: Graphics::HalfBlocks, ..Self::from_env() }
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name| variable(name).unwrap_or_default();
        let (term, program) = (value("TERM"), value("TERM_PROGRAM"));
        let in_tmux = variable("TMUX").is_some() || ["tmux", "screen"].iter().any(|name| term.starts_with(name));
        let is_iterm2 = ["iTerm.app", "WezTerm"].contains(&program.as_str()) || value("LC_TERMINAL") == "iTerm2";
        let graphics = match value("VIDTUI_PICTURES").as_str() {
            "kitty" => Graphics::Kitty,
            "iterm2" => Graphics::Iterm2,
            "sixel" => Graphics::Sixel,
            "blocks" => Graphics::HalfBlocks,
            _ if in_tmux => Graphics::HalfBlocks,
            _ if ["xterm-kitty", "xterm-ghostty"].contains(&term.as_str()) || program == "ghostty" => Graphics::Kitty,
            _ if is_iterm2 => Graphics::Iterm2,
            _ if term.starts_with("foot") => Graphics::Sixel,
            _ => Graphics::HalfBlocks,
        };
        let is_truecolor = ["truecolor", "24bit"].contains(&value("COLORTERM").as_str());
        Self { graphics, in_tmux, is_truecolor }
    }

    /// Decodes a video, and converts its frames to cells that fit into `size`.
    ///
    /// # Errors
    /// The video cannot be decoded.
    pub fn clip(self, path: &Utf8Path, size: Size) -> Result<Clip, Failure> {
        let times = shown_times(&video::frame_times(path)?);
        let cells = self.at_times(path, &times, size)?;
        let span_s = times.last().zip(times.first()).map_or(0.0, |(last, first)| last - first);
        let fps = if span_s > 0.0 { (times.len() - 1) as f64 / span_s } else { 0.0 };
        Ok(Clip { fps, frames: Arc::new(cells) })
    }

    /// Decodes at most `count` evenly spaced frames of a video, and converts each to cells that fit into `size`.
    ///
    /// # Errors
    /// The video cannot be decoded.
    pub fn frames(self, path: &Utf8Path, count: usize, size: Size) -> Result<Vec<Buffer>, Failure> {
        let times = video::frame_times(path)?;
        let count = count.min(times.len());
        let gaps = count.saturating_sub(1).max(1);
        let times: Vec<f64> = (0..count).map(|at| times[at * (times.len() - 1) / gaps]).collect();
        self.at_times(path, &times, size)
    }

    fn at_times(self, path: &Utf8Path, times: &[f64], size: Size) -> Result<Vec<Buffer>, Failure> {
        let probe = video::probe(path)?;
        let (width, height) = self.pixels((probe.width, probe.height), size);
        let picture = Picture { crop: CropMode::None, ..Picture::new(width, height) };
        let frames = video::decode(path, times, &picture)?;
        let cells = (0..frames.count).map(|at| self.cells(&frames, at, size)).collect::<Result<Vec<_>, _>>();
        cells.map_err(|why| {
            Failure::new(
                ErrorCode::Internal,
                format!("cannot show {path}"),
                why,
                "set VIDTUI_PICTURES=blocks, and open the console again",
            )
        })
    }

    /// Returns the size in pixels of a picture that keeps its proportions and fits into `size`.
    fn pixels(self, (width, height): (usize, usize), size: Size) -> (usize, usize) {
        let (columns, rows) = (usize::from(size.width), usize::from(size.height));
        // A half block is as wide as it is high.
        let (cell_width, cell_height) = if self.graphics == Graphics::HalfBlocks { (1, 2) } else { cell() };
        let (most_width, most_height) = ((columns * cell_width).min(self.graphics.max_width()), rows * cell_height);
        let scale = (most_width as f64 / width.max(1) as f64).min(most_height as f64 / height.max(1) as f64);
        let fit = |side: usize, most: usize| ((side as f64 * scale).round() as usize).clamp(1, most);
        // Make sizes even: video encoders need even sizes, and a cell of half blocks has two rows.
        let even = |side: usize| if side > 1 { side / 2 * 2 } else { 2 };
        (even(fit(width, most_width)), even(fit(height, most_height)))
    }

    /// Converts one frame to cells.
    fn cells(self, frames: &Frames, at: usize, size: Size) -> Result<Buffer, String> {
        /// Identifies pictures in the terminal's memory.
        static ID: AtomicU32 = AtomicU32::new(1);
        let pixels = RgbImage::from_raw(frames.width as u32, frames.height as u32, frames.frame(at).to_vec());
        let picture = DynamicImage::ImageRgb8(pixels.ok_or("the decoder returned too few pixels")?);
        let (cell_width, cell_height) = if self.graphics == Graphics::HalfBlocks { (1, 2) } else { cell() };
        let columns = frames.width.div_ceil(cell_width).min(usize::from(size.width)) as u16;
        let rows = frames.height.div_ceil(cell_height).min(usize::from(size.height)) as u16;
        let (cells, tmux) = (Cells::new(columns, rows), self.in_tmux);
        let protocol = match self.graphics {
            Graphics::HalfBlocks => Halfblocks::new(picture, cells).map(Protocol::Halfblocks),
            Graphics::Sixel => Sixel::new(picture, cells, tmux).map(Protocol::Sixel),
            Graphics::Iterm2 => Iterm2::new(picture, cells, tmux).map(Protocol::ITerm2),
            Graphics::Kitty => {
                let id = (std::process::id() << 16) | ID.fetch_add(1, Ordering::Relaxed) & 0xffff;
                Kitty::new(picture, cells, id, tmux, true).map(Protocol::Kitty)
            }
        };
        let protocol = protocol.map_err(|error| error.to_string())?;
        let area = Rect::new(0, 0, columns, rows);
        let mut buffer = Buffer::empty(area);
        Image::new(&protocol).render(area, &mut buffer);
        if self.graphics == Graphics::HalfBlocks && !self.is_truecolor {
            for cell in &mut buffer.content {
                (cell.fg, cell.bg) = (indexed(cell.fg), indexed(cell.bg));
            }
        }
        Ok(buffer)
    }
}

/// Returns pictures side by side as lines of characters with ANSI colours.
pub fn to_ansi(pictures: &[Buffer]) -> Escaped {
    let rows = pictures.iter().map(|picture| picture.area.height).max().unwrap_or(0);
    let mut parts = Vec::new();
    for y in 0..rows {
        for (at, picture) in pictures.iter().enumerate() {
            if at > 0 {
                parts.push(Escaped::own(" "));
            }
            for x in 0..picture.area.width {
                match picture.cell((x, y)) {
                    Some(cell) => {
                        parts.push(Escaped::colours(&[sgr(cell.fg, 30), sgr(cell.bg, 40)].concat()));
                        parts.push(Escaped::line(cell.symbol()));
                    }
                    None => parts.push(Escaped::own(" ")),
                }
            }
            parts.push(Escaped::own("\x1b[0m"));
        }
        parts.push(Escaped::own("\n"));
    }
    parts.into_iter().collect()
}

/// Returns the SGR parameters that select a colour: of characters for `plane` 30, of the background for 40.
fn sgr(colour: Color, plane: u8) -> Vec<u8> {
    match colour {
        Color::Rgb(r, g, b) => vec![plane + 8, 2, r, g, b],
        Color::Indexed(index) => vec![plane + 8, 5, index],
        _ => vec![plane + 9],
    }
}

/// Returns the size of a cell in pixels.
fn cell() -> (usize, usize) {
    let size = crossterm::terminal::window_size().ok().filter(|size| size.columns > 0 && size.rows > 0);
    let cell = size.map(|size| (usize::from(size.width / size.columns), usize::from(size.height / size.rows)));
    cell.filter(|(width, height)| *width > 1 && *height > 1).unwrap_or(CELL)
}

/// Chooses at most [`MAX_FPS`] frames per second, and at most [`MAX_FRAMES`] over the whole clip.
fn shown_times(times: &[f64]) -> Vec<f64> {
    let span_s = times.last().zip(times.first()).map_or(0.0, |(last, first)| last - first);
    let gap_s = (1.0 / MAX_FPS).max(span_s / (MAX_FRAMES - 1) as f64);
    let mut kept: Vec<f64> = Vec::new();
    for time in times {
        // Half a millisecond is less than the rounding of timestamps.
        if kept.last().is_none_or(|last| time - last >= gap_s - 5e-4) {
            kept.push(*time);
        }
    }
    kept.truncate(MAX_FRAMES);
    kept
}

/// Returns the nearest of the 256 colours that every terminal has.
fn indexed(colour: Color) -> Color {
    let Color::Rgb(r, g, b) = colour else { return colour };
    const LEVELS: [i32; 6] = [0, 95, 135, 175, 215, 255];
    let level = |value: u8| (0..6).min_by_key(|i| (LEVELS[*i] - i32::from(value)).abs()).expect("there are six levels");
    let distance =
        |to: [i32; 3]| [r, g, b].iter().zip(to).map(|(value, to)| (i32::from(*value) - to).pow(2)).sum::<i32>();
    let cube = [level(r), level(g), level(b)];
    let grey = ((i32::from(r) + i32::from(g) + i32::from(b)) / 3 - 8).clamp(0, 238) / 10;
    let grey = grey.min(23);
    let as_grey = 8 + 10 * grey;
    if distance([as_grey; 3]) < distance(cube.map(|at| LEVELS[at])) {
        Color::Indexed(232 + grey as u8)
    } else {
        Color::Indexed((16 + 36 * cube[0] + 6 * cube[1] + cube[2]) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU16;

    fn terminal(variables: &[(&str, &str)]) -> Terminal {
        Terminal::of(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_environment_selects_the_graphics_protocol() {
        use Graphics::*;
        for (variables, graphics) in [
            (&[("TERM", "xterm-kitty")][..], Kitty),
            (&[("TERM", "xterm-ghostty")], Kitty),
            (&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "ghostty")], Kitty),
            (&[("TERM", "xterm-256color"), ("TERM_PROGRAM", "WezTerm")], Iterm2),
            (&[("TERM", "xterm-256color"), ("LC_TERMINAL", "iTerm2")], Iterm2),
            (&[("TERM", "foot")], Sixel),
            (&[("TERM", "xterm-256color")], HalfBlocks),
            (&[("TERM", "tmux-256color"), ("LC_TERMINAL", "iTerm2")], HalfBlocks),
            (&[("TERM", "xterm-kitty"), ("TMUX", "/tmp/tmux-0/default,1,0")], HalfBlocks),
            (&[("TERM", "tmux-256color"), ("VIDTUI_PICTURES", "kitty")], Kitty),
            (&[("TERM", "xterm-kitty"), ("VIDTUI_PICTURES", "blocks")], HalfBlocks),
            (&[], HalfBlocks),
        ] {
            assert_eq!(terminal(variables).graphics, graphics, "{variables:?}");
        }
    }

    #[test]
    fn a_picture_keeps_its_proportions_and_fits() {
        let terminal = terminal(&[]);
        assert_eq!(terminal.pixels((720, 480), Size { width: 60, height: 40 }), (60, 40));
        assert_eq!(terminal.pixels((720, 480), Size { width: 200, height: 10 }), (30, 20));
        assert_eq!(terminal.pixels((480, 720), Size { width: 20, height: 40 }), (20, 30));
        assert_eq!(terminal.pixels((1, 4000), Size { width: 20, height: 40 }), (2, 80));
    }

    #[test]
    fn half_blocks_show_the_upper_and_the_lower_pixel_of_a_cell() {
        let rgb = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]].concat();
        let frames = Frames { width: 2, height: 2, count: 1, rgb };
        let size = Size { width: 2, height: 1 };
        let colours = |terminal: Terminal| {
            let buffer = terminal.cells(&frames, 0, size).unwrap();
            assert_eq!(buffer.area, Rect::new(0, 0, 2, 1));
            let pair = |x: u16| {
                let cell = &buffer[(x, 0)];
                if cell.symbol() == "▄" { (cell.bg, cell.fg) } else { (cell.fg, cell.bg) }
            };
            [pair(0), pair(1)]
        };
        let red_over_blue = (Color::Rgb(255, 0, 0), Color::Rgb(0, 0, 255));
        assert_eq!(colours(terminal(&[("COLORTERM", "truecolor")]))[0], red_over_blue);
        assert_eq!(colours(terminal(&[]))[0], (Color::Indexed(196), Color::Indexed(21)));
    }

    #[test]
    fn a_frame_that_has_not_changed_is_not_sent_again() {
        let frames = Frames { width: 40, height: 40, count: 1, rgb: vec![128; 40 * 40 * 3] };
        for graphics in ["kitty", "iterm2", "sixel", "blocks"] {
            let terminal = terminal(&[("VIDTUI_PICTURES", graphics)]);
            let cells = terminal.cells(&frames, 0, Size { width: 4, height: 2 }).unwrap();
            // The console copies the cells into each frame in the same way.
            let mut screen = Buffer::empty(Rect::new(0, 0, 10, 5));
            for (x, y) in (0..cells.area.width).flat_map(|x| (0..cells.area.height).map(move |y| (x, y))) {
                screen[(x + 1, y + 1)] = cells[(x, y)].clone();
            }
            assert!(!Buffer::empty(screen.area).diff(&screen).is_empty(), "{graphics}");
            assert!(screen.diff(&screen.clone()).is_empty(), "{graphics}");
        }
    }

    #[test]
    fn pictures_are_printed_side_by_side_with_ansi_colours() {
        let rgb = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]].concat();
        let frames = Frames { width: 2, height: 2, count: 1, rgb };
        let cells = |variables: &[(&str, &str)]| {
            let buffer = terminal(variables).cells(&frames, 0, Size { width: 2, height: 1 }).unwrap();
            to_ansi(&[buffer.clone(), buffer]).as_str().to_owned()
        };
        let [rows, columns] = [2, 10].map(|cells| NonZeroU16::new(cells).unwrap());
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parser.process(cells(&[("COLORTERM", "truecolor")]).as_bytes());
        let screen = parser.screen();
        let colours = |column: u16| {
            let cell = screen.cell(0, column).unwrap();
            [cell.fgcolor(), cell.bgcolor()]
        };
        let (red, blue) = (vt100::Color::Rgb(255, 0, 0), vt100::Color::Rgb(0, 0, 255));
        for column in [0, 3] {
            assert!(colours(column) == [red, blue] || colours(column) == [blue, red], "{:?}", colours(column));
        }
        assert_eq!(colours(2), [vt100::Color::Default; 2]);
        assert!(cells(&[]).contains("8;5;196"), "{:?}", cells(&[]));
    }

    #[test]
    fn the_nearest_of_256_colours_is_used() {
        assert_eq!(indexed(Color::Rgb(0, 0, 0)), Color::Indexed(16));
        assert_eq!(indexed(Color::Rgb(128, 128, 128)), Color::Indexed(244));
        assert_eq!(indexed(Color::Rgb(255, 255, 255)), Color::Indexed(231));
        assert_eq!(indexed(Color::Rgb(95, 135, 175)), Color::Indexed(67));
        assert_eq!(indexed(Color::Reset), Color::Reset);
    }

    #[test]
    fn a_clip_of_many_frames_is_shown_to_its_end_with_fewer_frames() {
        let times = |frames: u32, fps: f64| (0..frames).map(|i| f64::from(i) / fps).collect::<Vec<f64>>();
        assert_eq!(shown_times(&times(30, 30.0)), times(30, 30.0));
        assert_eq!(shown_times(&times(60, 60.0)).len(), 30);
        // A minute at 16 frames per second.
        let (long, shown) = (times(1000, 16.0), shown_times(&times(1000, 16.0)));
        assert!((100..=MAX_FRAMES).contains(&shown.len()), "{}", shown.len());
        assert!(long[999] - shown[shown.len() - 1] < 1.0);
        assert_eq!(shown_times(&[0.5]), [0.5]);
    }
}
