//! The length of a training run: the keys `train.steps` and `train.epochs`, of which a recipe has one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ResumeEffect;
use crate::schema::{MOST_STEPS, TRAIN, TRAIN_AND_COMMAND, int};

section! {
    /// The keys of a [`Length`].
    pub struct LengthKeys("train", TRAIN, ResumeEffect::Training) {
        /// optimizer steps of the whole run
        #[serde(default, skip_serializing_if = "is_zero")]
        pub steps: u64 => int(1, MOST_STEPS).read_by(TRAIN_AND_COMMAND).or("train.epochs");
        /// passes over the data sets instead of train.steps; 0: train.steps is set
        #[serde(default)]
        pub epochs: u64 = 0 => int(0, 1_000_000).on_resume(COMPUTED).or("train.steps");
    }
}

const COMPUTED: ResumeEffect =
    ResumeEffect::Refused("the number of steps was computed from it at the launch; change train.steps");

/// The length of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "LengthKeys", into = "LengthKeys")]
pub enum Length {
    /// This number of optimizer steps.
    Steps(u64),
    /// This number of passes over the data sets, whose number of steps depends on the data sets.
    Epochs(u64),
}

impl Length {
    /// Returns the number of steps; `None` if it depends on the data sets.
    pub fn steps(self) -> Option<u64> {
        match self {
            Length::Steps(steps) => Some(steps),
            Length::Epochs(_) => None,
        }
    }

    /// Reads the length from the table of a recipe, without checks; `None` if the recipe has none.
    pub fn of_table(recipe: &toml::Table) -> Option<Length> {
        let train = recipe.get("train")?;
        let number = |key: &str| train.get(key)?.as_integer().and_then(|number| u64::try_from(number).ok());
        match number("steps") {
            Some(steps) => Some(Length::Steps(steps)),
            None => number("epochs").filter(|epochs| *epochs > 0).map(Length::Epochs),
        }
    }
}

/// Shows `240 steps` or `3 epochs`.
impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::Steps(steps) => f.write_str(&units::counted(*steps as usize, "step")),
            Length::Epochs(epochs) => f.write_str(&units::counted(*epochs as usize, "epoch")),
        }
    }
}

impl From<LengthKeys> for Length {
    fn from(keys: LengthKeys) -> Self {
        match keys {
            LengthKeys { steps: 0, epochs: 1.. } => Length::Epochs(keys.epochs),
            LengthKeys { steps, .. } => Length::Steps(steps),
        }
    }
}

impl From<Length> for LengthKeys {
    fn from(length: Length) -> Self {
        match length {
            Length::Steps(steps) => LengthKeys { steps, epochs: 0 },
            Length::Epochs(epochs) => LengthKeys { steps: 0, epochs },
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recipe, load};

    fn minimal(sets: &[String]) -> Recipe {
        load("../../tests/fixtures/configs/valid/minimal.toml".into(), sets).unwrap().recipe
    }

    #[test]
    fn a_length_is_written_and_read_as_the_key_that_sets_it() {
        let lengths = [Length::Steps(7), Length::Epochs(3)];
        let of = |length: Length| {
            let (key, number) = match length {
                Length::Steps(steps) => ("steps", steps),
                Length::Epochs(epochs) => ("epochs", epochs),
            };
            let recipe = minimal(&[format!("train.{key}={number}")]);
            let table = recipe.to_table();
            let train = table["train"].as_table().unwrap();
            let keys = ["steps", "epochs"].map(|key| train.get(key).and_then(toml::Value::as_integer));
            (recipe.train.length, Length::of_table(&table), keys)
        };
        let [steps, epochs] = lengths;
        assert_eq!(of(steps), (steps, Some(steps), [Some(7), Some(0)]));
        assert_eq!(of(epochs), (epochs, Some(epochs), [None, Some(3)]));
        assert_eq!(Length::of_table(&toml::Table::new()), None);
    }

    #[test]
    fn hints_for_a_length_in_epochs_propose_no_number_of_steps() {
        let hint = |length: &str| {
            let sets = [length, "optimizer.schedule=one_cycle"].map(ToOwned::to_owned);
            load("../../tests/fixtures/configs/valid/minimal.toml".into(), &sets).unwrap_err().fix
        };
        assert!(hint("train.steps=20").contains("for example to 6"));
        assert!(!hint("train.epochs=3").contains("for example"));
    }

    #[test]
    fn unknown_keys_beside_the_length_are_refused() {
        let mut train = minimal(&[]).to_table()["train"].as_table().unwrap().clone();
        assert!(train.clone().try_into::<crate::Train>().is_ok());
        train.insert("stepz".into(), 3.into());
        assert!(train.try_into::<crate::Train>().is_err());
    }
}
