//! Texts about the goodput of a run: the share of time in steps that counted, and the lost time by cause.

use rundir::ErrorCode;
use runstate::{EndCause, Goodput, Loss};

/// Returns the share of the time in steps that counted: `93.1 %`. Returns `None` if the steps are not logged.
pub fn share(goodput: &Goodput) -> Option<String> {
    goodput.share().map(|share| format!("{:.1} %", (share * 1000.0).floor() / 10.0))
}

/// Describes the share: `93.1 % of 2 h 10 min since the first start`.
pub fn sentence(goodput: &Goodput) -> String {
    let wall = units::duration(goodput.wall_s);
    match share(goodput) {
        Some(share) => format!("{share} of {wall} since the first start"),
        None => format!("unknown for {wall} since the first start, because the steps are not logged"),
    }
}

/// Describes the share of several runs: `93.1 % of 2 h 10 min`. Runs whose steps are not logged do not count.
pub fn of_runs(goodput: &Goodput) -> String {
    let logged = Goodput { wall_s: goodput.wall_s - goodput.unlogged_s, unlogged_s: 0.0, ..goodput.clone() };
    match share(&logged) {
        Some(share) => format!("{share} of {}", units::duration(logged.wall_s)),
        None => "unknown: no steps are logged yet".to_owned(),
    }
}

/// Lists the lost time by cause, the longest first: `starting 4 min, repeated steps 30 s`. Causes of less than half a second are
/// left out.
pub fn losses(goodput: &Goodput) -> String {
    let losses = goodput.losses().into_iter().filter(|(_, seconds)| *seconds >= 0.5);
    let texts = losses.map(|(loss, seconds)| format!("{} {}", cause(loss), units::duration(seconds)));
    texts.collect::<Vec<_>>().join(", ")
}

fn cause(loss: Loss) -> String {
    match loss {
        Loss::Starting => "starting and ending".into(),
        Loss::Repeated => "repeated steps".into(),
        Loss::Checkpoints => "checkpoints".into(),
        Loss::Samples => "samples and validation".into(),
        Loss::Stalled => "stalled".into(),
        Loss::Down(EndCause::Unknown | EndCause::Failed(ErrorCode::Unknown)) => {
            "down after an end without record".into()
        }
        Loss::Down(EndCause::Finished) => "down after it had finished".into(),
        Loss::Down(EndCause::Stopped) => "down after a stop".into(),
        Loss::Down(EndCause::Killed) => "down after a kill".into(),
        Loss::Down(EndCause::Failed(code)) => format!("down after {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runstate::Down;

    #[test]
    fn a_share_is_never_rounded_up_and_causes_without_time_are_left_out() {
        let down = Down { cause: EndCause::Failed(ErrorCode::NodeLost), times: 1, seconds: 90.0 };
        let goodput = Goodput {
            wall_s: 10_000.0,
            counted_s: 9_999.0,
            stalled_s: 30.0,
            samples_s: 0.4,
            down: vec![down],
            ..Goodput::default()
        };
        assert_eq!(share(&goodput).as_deref(), Some("99.9 %"));
        assert_eq!(losses(&goodput), "down after node-lost 1 min 30 s, stalled 30 s");
        assert_eq!(share(&Goodput { wall_s: 10.0, unlogged_s: 10.0, ..Goodput::default() }), None);
    }
}
