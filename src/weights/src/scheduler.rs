//! Reads the noise schedule of a model from the `scheduler_config.json` of a diffusers pipeline.

use crate::config::read_json;
use camino::Utf8Path;
use recipe::Model;
use rundir::{ErrorCode, Failure};
use serde::Deserialize;
use serde_json::Value;

/// The keys that the noise schedule depends on. A missing key has the default of its class.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs, reason = "the names and meanings are those of diffusers")]
pub struct SchedulerConfig {
    #[serde(rename = "_class_name", default)]
    pub class_name: String,
    pub num_train_timesteps: Option<i64>,
    pub beta_start: Option<f64>,
    pub beta_end: Option<f64>,
    pub beta_schedule: Option<String>,
    pub trained_betas: Option<Value>,
    pub prediction_type: Option<String>,
    pub rescale_betas_zero_snr: Option<bool>,
    pub snr_shift_scale: Option<f64>,
    pub timestep_spacing: Option<String>,
}

/// The classes that can be read, and whether they shift the signal-to-noise ratio.
const CLASSES: [(&str, bool); 4] = [
    ("CogVideoXDDIMScheduler", true),
    ("CogVideoXDPMScheduler", true),
    ("DDPMScheduler", false),
    ("DDIMScheduler", false),
];

impl SchedulerConfig {
    /// Reads a `scheduler_config.json`.
    ///
    /// # Errors
    /// The file is missing or malformed.
    pub fn read(path: &Utf8Path) -> Result<Self, Failure> {
        serde_json::from_value(read_json(path)?).map_err(|e| {
            let fix = "copy it again from the source of the weights";
            Failure::new(ErrorCode::Malformed, format!("cannot use {path}"), e.to_string(), fix)
        })
    }

    /// Returns the model with this noise schedule.
    ///
    /// # Errors
    /// The trainer does not support the schedule; the error names the key.
    pub fn apply(&self, path: &Utf8Path, model: &Model) -> Result<Model, Failure> {
        let unsupported = |key: &str, value: &str, wanted: &str| {
            Err(Failure::new(
                ErrorCode::UnsupportedModel,
                format!("cannot use {path}"),
                format!("its {key} is {value}, and the trainer supports {wanted}"),
                "use the scheduler/ folder of a CogVideoX or CogVideoX-Fun model",
            ))
        };
        let Some((_, shifts)) = CLASSES.into_iter().find(|(class, _)| *class == self.class_name) else {
            return unsupported("_class_name", &self.class_name, &CLASSES.map(|(class, _)| class).join(", "));
        };
        let word = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
        let prediction = word(&self.prediction_type, "epsilon");
        if prediction != "v_prediction" {
            return unsupported("prediction_type", &prediction, "v_prediction");
        }
        if self.trained_betas.as_ref().is_some_and(|betas| !betas.is_null()) {
            return unsupported("trained_betas", "a list", "beta_start, beta_end and beta_schedule");
        }
        // The defaults of CogVideoX's schedulers, then those of the others.
        let (start, end, schedule) = if shifts { (0.00085, 0.012, "scaled_linear") } else { (0.0001, 0.02, "linear") };
        let mut table = model.to_table();
        let mut set = |key: &str, value: toml::Value| drop(table.insert(key.to_owned(), value));
        set("timesteps", self.num_train_timesteps.unwrap_or(1000).into());
        set("beta_start", self.beta_start.unwrap_or(start).into());
        set("beta_end", self.beta_end.unwrap_or(end).into());
        set("beta_schedule", word(&self.beta_schedule, schedule).into());
        set("zero_terminal_snr", self.rescale_betas_zero_snr.unwrap_or(false).into());
        // DDPM and DDIM ignore a shift, whatever their configuration contains. VideoX-Fun reads the configuration of its 2B model, which
        // names CogVideoX's class and the shift of 3.0, with these two (`scripts/cogvideox_fun/train.py`, `predict_i2v.py`).
        let shift =
            if shifts && !model.cogvideox().resize_positions { self.snr_shift_scale.unwrap_or(3.0) } else { 1.0 };
        set("snr_shift_scale", shift.into());
        set("timestep_spacing", word(&self.timestep_spacing, "leading").into());
        Model::from_table(&table).map_err(|e| {
            let fix = "use the scheduler/ folder of a CogVideoX or CogVideoX-Fun model";
            Failure::new(ErrorCode::UnsupportedModel, format!("cannot use {path}"), e.why, fix)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let sizes = "num_layers=1\nnum_heads=1\ntext_len=1\nlatent_frames=1\nlatent_height=2\nlatent_width=2";
        Model::from_table(&sizes.parse().unwrap()).unwrap()
    }

    fn apply(text: &str) -> Result<Model, Failure> {
        let config: SchedulerConfig = serde_json::from_str(text).unwrap();
        config.apply("scheduler/scheduler_config.json".into(), &model())
    }

    #[test]
    fn the_published_schedulers_are_read_and_missing_keys_have_their_defaults() {
        let published = r#"{"_class_name":"CogVideoXDDIMScheduler","prediction_type":"v_prediction","snr_shift_scale":1.0,
            "rescale_betas_zero_snr":true,"timestep_spacing":"trailing","trained_betas":null}"#;
        assert_eq!(apply(published).unwrap(), model());
        let bare = r#"{"_class_name":"CogVideoXDPMScheduler","prediction_type":"v_prediction"}"#;
        let bare = apply(bare).unwrap();
        assert_eq!((bare.cogvideox().snr_shift_scale, bare.cogvideox().zero_terminal_snr), (3.0, false));
        let fun = model().with_cogvideox(|keys| keys.resize_positions = true);
        let config: SchedulerConfig = serde_json::from_str(&published.replace("1.0", "3.0")).unwrap();
        assert_eq!(config.apply("scheduler_config.json".into(), &model()).unwrap().cogvideox().snr_shift_scale, 3.0);
        assert_eq!(config.apply("scheduler_config.json".into(), &fun).unwrap().cogvideox().snr_shift_scale, 1.0);
        let ddpm = r#"{"_class_name":"DDPMScheduler","prediction_type":"v_prediction","snr_shift_scale":3.0}"#;
        let ddpm = apply(ddpm).unwrap();
        assert_eq!((ddpm.cogvideox().snr_shift_scale, ddpm.cogvideox().beta_end), (1.0, 0.02));
    }

    #[test]
    fn a_schedule_that_the_trainer_does_not_have_names_its_key() {
        let ours = r#""_class_name":"CogVideoXDDIMScheduler","prediction_type":"v_prediction""#;
        let cases = [
            (r#""_class_name":"EulerDiscreteScheduler""#.to_owned(), "_class_name"),
            (r#""_class_name":"CogVideoXDDIMScheduler""#.to_owned(), "prediction_type"),
            (format!(r#"{ours},"trained_betas":[0.1]"#), "trained_betas"),
            (format!(r#"{ours},"beta_schedule":"squaredcos_cap_v2""#), "beta_schedule"),
            (format!(r#"{ours},"timestep_spacing":"random""#), "timestep_spacing"),
        ];
        for (keys, key) in cases {
            let failure = apply(&format!("{{{keys}}}")).unwrap_err();
            assert_eq!(failure.code, ErrorCode::UnsupportedModel);
            assert!(failure.why.contains(key), "{failure}");
        }
    }
}
