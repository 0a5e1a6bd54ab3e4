//! Compares the network's input for a batch with conditions with the recorded inputs of cogvideox-factory and
//! VideoX-Fun.
//!
//! Reads `i2v_training/*.safetensors` of the oracle. The network, the losses and the gradients of the same files are tested in `dit`.

use crate::conditions;
use crate::oracle;
use camino::Utf8Path;
use dataset::{IMAGE, KNOWN, MASKED};
use dit::diffusion::NoiseSchedule;
use dit::family::Conditions;
use recipe::{ConditionKind, Conditioning};
use tch::{Kind, Tensor};
use weights::{Header, SchedulerConfig};

/// The dropout probability at which every condition is dropped.
const ALWAYS: f64 = 1.0;

struct Case {
    header: Header,
    config: serde_json::Value,
}

impl Case {
    fn has(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str) -> Tensor {
        let info = self.header.tensor(name).unwrap_or_else(|e| panic!("{}: {e}", self.header.path));
        let shape: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
        Tensor::from_data_size(&self.header.read_tensor(name).unwrap(), &shape, crate::data::kind(info.dtype))
    }

    /// Returns the clean latents and the conditions, both scaled, and the recipe's condition for each sample.
    fn parts(&self) -> (Tensor, Conditions, Vec<Conditioning>) {
        if !self.has("in.mask") {
            let first = |names: [&str; 2]| names.into_iter().find(|name| self.has(name)).map(|name| self.tensor(name));
            let latent = first(["mid.video_latent", "in.video_latent"]).expect("a latent");
            let image = first(["mid.image_latent", "in.image_latent"]);
            let share = self.config["noised_image_dropout"].as_f64().expect("a probability");
            let dropped = self.tensor("in.dropout_u").double_value(&[]) < share;
            let image_dropout = if dropped { ALWAYS } else { 0.0 };
            let condition = Conditioning { kind: ConditionKind::Image, image_dropout, ..Conditioning::default() };
            let samples = latent.size()[0] as usize;
            return (latent, image.map(|image| (IMAGE, image)).into_iter().collect(), vec![condition; samples]);
        }
        let scale = self.config["scaling_factor"].as_f64().expect("a scale");
        let halves = self.tensor("mid.masked_moments").chunk(2, 1);
        let masked = (&halves[0] + (halves[1].clamp(-30.0, 20.0) * 0.5).exp() * self.tensor("in.eps_masked")) * scale;
        let size = masked.size();
        let known = dit::conditions::known(&self.tensor("in.mask"), [size[2], size[3], size[4]]) * scale;
        let conditions = vec![(KNOWN, known), (MASKED, masked.transpose(1, 2))];
        let kept: Vec<i64> = Vec::try_from(self.tensor("in.keep")).unwrap();
        let of = |kept: i64| Conditioning {
            kind: ConditionKind::Inpaint,
            mask_dropout: if kept == 0 { ALWAYS } else { 0.0 },
            ..Conditioning::default()
        };
        (self.tensor("mid.latent"), conditions, kept.into_iter().map(of).collect())
    }
}

#[test]
fn oracle_inputs_with_conditions_are_those_of_the_factory_and_videox_fun() {
    let is_tensors = |path: &Utf8Path| path.extension() == Some("safetensors");
    for path in oracle::entries("i2v_training", "*.safetensors", is_tensors) {
        let header = Header::read(&path).unwrap();
        let config: serde_json::Value = serde_json::from_str(&header.metadata["config"]).unwrap();
        let scheduler = oracle::root().join(config["scheduler"].as_str().unwrap()).join("scheduler_config.json");
        let case = Case { header, config };
        let sizes = "num_layers=1\nnum_heads=1\ntext_len=1\nlatent_frames=1\nlatent_height=2\nlatent_width=2";
        let model = recipe::Model::from_table(&sizes.parse().unwrap()).unwrap();
        let model = SchedulerConfig::read(&scheduler).unwrap().apply(&scheduler, &model).unwrap();
        let (latent, conditions, recipes) = case.parts();
        let noised = NoiseSchedule::new(&model).noise(&latent, &case.tensor("in.noise"), &case.tensor("in.timestep"));
        let wanted = case.tensor("mid.transformer_input");
        for (sample, condition) in recipes.iter().enumerate() {
            let part = |whole: &Tensor| whole.narrow(0, sample as i64, 1);
            let own = conditions.iter().map(|(role, tensor)| (*role, part(tensor))).collect();
            let number = sample as u64;
            let own = conditions::inputs(own, condition, &latent, 1, 0, number..number + 1).unwrap();
            let parts = std::iter::once(part(&noised.latent)).chain(own.into_iter().map(|(_, tensor)| tensor));
            let input = Tensor::cat(&parts.collect::<Vec<_>>(), 2);
            let error = (&input - part(&wanted)).norm() / part(&wanted).norm();
            let error = error.to_kind(Kind::Double).double_value(&[]);
            assert!(error < 1e-5, "{path}: the input of sample {sample} differs by {error:e}");
        }
    }
}
