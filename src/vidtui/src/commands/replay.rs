//! `vidtui replay`: plays a recorded session, or prints its last screen.

use crate::args::ReplayArgs;
use crate::command_error::CommandError;
use crate::console::{self, End};
use crate::record::{self, RecordedMsg};
use crate::terminal::Screen;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use rundir::{ErrorCode, Failure};
use ui::{Model, Msg, Size};

/// Plays a recording on the terminal. With `--screen`, prints its last screen instead.
pub fn run(args: &ReplayArgs) -> Result<End, CommandError> {
    let (header, moments) = record::open(&args.file)?;
    if let Some(size) = &args.screen {
        let size = parse_size(size)?;
        let mut model = Model::new(header.setup(size));
        for moment in moments {
            // The requested size applies, not the recorded one.
            match moment?.msg {
                Msg::Resize(_) => {}
                msg => drop(ui::update(&mut model, msg)),
            }
        }
        return print_screen(&model, size).map(|()| End::Quit);
    }
    if !Screen::available() {
        let fix = "print the last screen instead: vidtui replay FILE --screen 80x24";
        return Err(CommandError::request(Failure::new(
            ErrorCode::NoTerminal,
            format!("cannot replay {}", args.file),
            "standard input or output is not a terminal",
            fix,
        )));
    }
    if !(args.speed.is_finite() && args.speed > 0.0) {
        let why = format!("--speed {} is not a positive number", args.speed);
        return Err(CommandError::request(Failure::new(
            ErrorCode::InvalidArgument,
            format!("cannot replay {}", args.file),
            why,
            "for example: --speed 2",
        )));
    }
    // Read before the alternate screen opens, so that an error stays visible.
    let moments: Vec<RecordedMsg> = moments.collect::<Result<_, _>>()?;
    console::replay(&header, moments.into_iter(), args.speed)
}

fn print_screen(model: &Model, size: Size) -> Result<(), CommandError> {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(size.width, size.height));
    let Ok(_) = terminal.draw(|frame| ui::view(model, frame));
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..size.height {
        let line: String = (0..size.width).map(|x| buffer[(x, y)].symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    crate::output::text(&text)
}

fn parse_size(text: &str) -> Result<Size, CommandError> {
    let size = text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    match size {
        Some((width, height)) if width > 0 && height > 0 && width <= 1000 && height <= 1000 => {
            Ok(Size { width, height })
        }
        _ => {
            let what = format!("cannot use --screen {text}");
            Err(CommandError::request(Failure::new(
                ErrorCode::InvalidArgument,
                what,
                "the size must be COLSxROWS, each from 1 to 1000",
                "for example: --screen 80x24",
            )))
        }
    }
}
