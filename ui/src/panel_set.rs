//! The panels beside and below the large chart of a training run, as the user has picked them.

use crate::layout::Panel;
use rundir::Chart;

/// The panels that can be picked, in the order in which they are shown.
pub const PICKABLE: [Panel; 11] = [
    Panel::Chart(Chart::LearningRate),
    Panel::Chart(Chart::GradNorm),
    Panel::Chart(Chart::StepTime),
    Panel::Chart(Chart::Memory),
    Panel::Chart(Chart::WeightNorm),
    Panel::Chart(Chart::Mfu),
    Panel::Ranks,
    Panel::Chart(Chart::ValidationLoss),
    Panel::Chart(Chart::Power),
    Panel::Chart(Chart::Utilization),
    Panel::Chart(Chart::NodeMemory),
];

/// A set of [`PICKABLE`] panels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PanelSet(u16);

impl PanelSet {
    /// Returns the set of these panels, without those that cannot be picked.
    pub fn of(panels: impl IntoIterator<Item = Panel>) -> Self {
        Self(panels.into_iter().map(bit).fold(0, |set, bit| set | bit))
    }

    /// Returns whether a panel is in the set.
    pub fn contains(self, panel: Panel) -> bool {
        self.0 & bit(panel) != 0
    }

    /// Adds a panel, or removes it.
    pub fn toggle(&mut self, panel: Panel) {
        self.0 ^= bit(panel);
    }

    /// Returns the names of its panels in files.
    pub fn names(self) -> Vec<String> {
        PICKABLE.into_iter().filter(|panel| self.contains(*panel)).map(|panel| name(panel).to_owned()).collect()
    }

    /// Returns the set of the panels with these names. Unknown names come from another version, and are ignored.
    pub fn with_names(names: &[String]) -> Self {
        Self::of(PICKABLE.into_iter().filter(|panel| names.iter().any(|known| known == name(*panel))))
    }
}

fn bit(panel: Panel) -> u16 {
    PICKABLE.iter().position(|known| *known == panel).map_or(0, |at| 1 << at)
}

/// Returns the title of a panel that can be picked.
pub fn title(panel: Panel) -> &'static str {
    match panel {
        Panel::Chart(chart) => chart.info(true).title,
        _ => "Ranks",
    }
}

fn name(panel: Panel) -> &'static str {
    match panel {
        Panel::Chart(chart) => chart.info(true).name,
        _ => "ranks",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_read_back_from_its_names() {
        for bits in 0..1 << PICKABLE.len() {
            let set = PanelSet(bits);
            assert_eq!(PanelSet::with_names(&set.names()), set);
        }
        assert_eq!(PanelSet::with_names(&["of-a-newer-version".to_owned()]), PanelSet::default());
        assert_eq!(PanelSet::of([Panel::Events]), PanelSet::default());
    }
}
