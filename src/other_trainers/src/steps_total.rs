//! Finds the number of steps of a program in its log.

use crate::bar;
use crate::found::{Found, find};
use crate::lines::Lines;

/// Returns the number of steps that the last progress bar or line with a step shows, such as 1000 in `12/1000`. Returns `None` if no line shows
/// it, or if the steps begin again or the number changes: a bar then shows the batches of an epoch.
pub fn steps_total(log: &[u8]) -> Option<u64> {
    let mut lines = Lines::default();
    let mut texts = lines.push(log);
    texts.extend(lines.half());
    let found = texts.iter().flat_map(|text| bar::apart(text)).filter_map(|line| find(line, 1));
    let found: Vec<Found> =
        found.filter(|found| !found.is_validation && found.total.is_some_and(|total| total > 0)).collect();
    let with_loss = found.iter().rev().find(|found| found.values.loss.is_some());
    let last = with_loss.or(found.last())?;
    let same: Vec<&Found> = found.iter().filter(|other| (other.kind, &other.name) == (last.kind, &last.name)).collect();
    let goes_on = same.is_sorted_by_key(|found| found.step) && same.iter().all(|found| found.total == last.total);
    // `Epoch 2: 5/20` and `Epoch [2/3], Step [5/20]` count the steps of an epoch.
    last.total.filter(|_| goes_on && !last.is_of_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_that_of_the_bar_with_the_loss_unless_the_bar_begins_again() {
        let bar = |step: u64, total: u64| {
            format!("Steps: {:3}%|#   | {step}/{total} [00:01<00:09, 1.20s/it, loss=0.5]\r", step * 100 / total)
        };
        let log = |steps: &[(u64, u64)]| steps.iter().map(|(step, total)| bar(*step, *total)).collect::<String>();
        assert_eq!(steps_total(log(&[(1, 30), (2, 30)]).as_bytes()), Some(30));
        assert_eq!(steps_total(log(&[(29, 30), (30, 30), (1, 30)]).as_bytes()), None);
        assert_eq!(steps_total(log(&[(1, 30), (2, 40)]).as_bytes()), None);
        assert_eq!(steps_total(b"step 10 loss 0.5\n"), None);
        assert_eq!(steps_total(b"Step [10/100], Loss: 0.5\n"), Some(100));
        assert_eq!(steps_total(b"Epoch [1/3], Step [10/100], Loss: 0.5\n"), None);
        assert_eq!(steps_total(log(&[(1, 30), (2, 30)]).replace("Steps", "Epoch 0").as_bytes()), None);
        let with_evaluation = format!("{}Validation: 100%|#| 4/4 [00:01<00:00, 1.20s/it]\n", log(&[(1, 30), (2, 30)]));
        assert_eq!(steps_total(with_evaluation.as_bytes()), Some(30));
    }
}
