//! The attention level of a node, which sorts the list of nodes. The level changes slowly, so that rows do not jump at each sample.

use super::NodeHealth;

/// Seconds for which a node keeps its place after its fault or its outlier is gone.
const HELD_S: f64 = 60.0;
/// The weight of the newest search in the share of searches that found an outlier: a moving average over about ten of them.
const WEIGHT: f32 = 0.1;
/// Searches before which no node counts as an outlier: while GPUs start to compute, their power differs.
const FIRST_SEARCHES: u32 = 3;
/// A node becomes an outlier above the first share, and stays one while its share is above the second.
const OUTLIER: (f32, f32) = (0.6, 0.2);

/// How much a node needs attention, the most urgent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    #[default]
    Well,
    Outlier,
    Warned,
    Late,
    Faulty,
    Unreachable,
}

impl From<NodeHealth> for Level {
    fn from(condition: NodeHealth) -> Self {
        match condition {
            // All nodes are connecting at the start, so a connecting node counts as well.
            NodeHealth::Well | NodeHealth::Connecting => Self::Well,
            NodeHealth::Warned => Self::Warned,
            NodeHealth::Late => Self::Late,
            NodeHealth::Faulty => Self::Faulty,
            NodeHealth::Unreachable => Self::Unreachable,
        }
    }
}

/// The level of a node, and the data that it follows from.
#[derive(Debug, Clone, Default)]
pub struct Attention {
    level: Level,
    /// When the node last had this level or a more urgent one.
    seen_s: f64,
    /// The number of searches for outliers.
    searches: u32,
    /// The share of searches that found an outlier.
    outlier_share: f32,
}

impl Attention {
    /// Returns the level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Applies the condition of the node and the result of a search for outliers, which is `None` without a current sample. The level
    /// rises at once for a fault, and after about nine searches for an outlier, or after three at the start. It falls after a minute.
    pub fn update(&mut self, condition: NodeHealth, has_outlier: Option<bool>, now: f64) {
        if let Some(found) = has_outlier.map(|found| f32::from(u8::from(found))) {
            self.searches = self.searches.saturating_add(1);
            // At first the share is the mean of all searches.
            self.outlier_share += (found - self.outlier_share) * WEIGHT.max(1.0 / self.searches as f32);
        }
        let least = if self.level == Level::Outlier { OUTLIER.1 } else { OUTLIER.0 };
        let is_outlier = self.searches >= FIRST_SEARCHES && self.outlier_share > least;
        let level = Level::from(condition).max(if is_outlier { Level::Outlier } else { Level::Well });
        // A clock that is set back does not keep the level.
        if level >= self.level || (now - self.seen_s).abs() >= HELD_S {
            (self.level, self.seen_s) = (level, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies searches every two seconds, and returns the times at which the level changes.
    fn changes(condition: impl Fn(u32) -> NodeHealth, has_outlier: impl Fn(u32) -> bool) -> Vec<(u32, Level)> {
        let (mut attention, mut changes) = (Attention::default(), Vec::new());
        for at in 0..300 {
            let before = attention.level();
            attention.update(condition(at), Some(has_outlier(at)), 1000.0 + f64::from(at) * 2.0);
            if attention.level() != before {
                changes.push((at * 2, attention.level()));
            }
        }
        changes
    }

    #[test]
    fn a_fault_rises_at_once_and_falls_a_minute_after_it_ended() {
        let condition = |at| if (10..20).contains(&at) { NodeHealth::Faulty } else { NodeHealth::Well };
        assert_eq!(changes(condition, |_| false), [(20, Level::Faulty), (98, Level::Well)]);
    }

    #[test]
    fn a_fault_that_comes_and_goes_does_not_move_the_node() {
        let condition = |at: u32| if at.is_multiple_of(2) { NodeHealth::Warned } else { NodeHealth::Well };
        assert_eq!(changes(condition, |_| false), [(0, Level::Warned)]);
    }

    #[test]
    fn an_outlier_rises_after_some_samples_and_noise_never_does() {
        let well = |_| NodeHealth::Well;
        assert_eq!(changes(well, |at| at >= 10), [(36, Level::Outlier)]);
        assert_eq!(changes(well, |at| at % 3 == 1), [], "every third sample");
        assert_eq!(changes(well, |at| at != 0 && at < 100).first(), Some(&(4, Level::Outlier)));
    }

    #[test]
    fn at_the_start_an_outlier_rises_after_three_samples_and_one_sample_is_not_enough() {
        assert_eq!(changes(|_| NodeHealth::Well, |_| true), [(4, Level::Outlier)]);
        assert_eq!(changes(|_| NodeHealth::Well, |at| at == 0), []);
    }
}
