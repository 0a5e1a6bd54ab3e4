//! A complete recipe: every section of a training configuration.

use crate::families::FamilyKey;
use crate::families::wan::WanKeys;
use crate::length::LengthKeys;
use crate::schema::{EMBEDDED, EVERY_JOB, Kind, Spec, word};
use crate::{
    CheckpointPolicy, CogVideoXKeys, Command, Conditioning, Data, Ema, Encode, Encoders, Env, Flow, Length, Log, Lora,
    Loss, MemorySettings, Mesh, Model, Optimizer, ParamSpec, RecipeError, Remat, ResumeEffect, RunSettings, SCHEMA,
    Sampling, Shape, Shapes, Task, Train, Trainable, TrainerKind,
};

recipe! {
    /// A complete, checked recipe for one stage.
    ///
    /// [`load`](crate::load()) and [`Recipe::from_table`] create a recipe. Call [`Recipe::check`] after changing a field. Only the keys that
    /// [apply to its job](crate::Key::is_for) are read.
    pub struct Recipe(EVERY_JOB, ResumeEffect::OtherRun) {
        /// short name of the recipe, part of the ids of its runs; default: the file name
        pub name: String = String::new() => Spec::of(Kind::Name);
        /// task of the embedded trainer; train: trains a model; encode: makes a data set of latents from videos; sample: makes
        /// videos from a checkpoint
        pub task: Task = Task::Train => word::<Task>().read_by(EMBEDDED);
        /// embedded: vidtui's own trainer; command: the program in [command]
        pub trainer: TrainerKind = TrainerKind::Embedded => word::<TrainerKind>();
    } with sections {
        /// The program that trains instead of the embedded trainer.
        pub command: Command;
        /// The environment of every rank.
        pub env: Env;
        /// The model and its input.
        pub model: Model then keys of FamilyKey and CogVideoXKeys and WanKeys;
        /// The data set.
        pub data: Data;
        /// The VAE, the text encoder and the tokenizer.
        pub encoders: Encoders;
        /// The clips to encode, and the settings of the encode.
        pub encode: Encode;
        /// Steps, batch and trained parameters.
        pub train: Train with keys of LengthKeys;
        /// Adapters that are trained beside frozen weights.
        pub lora: Lora;
        /// The inputs of the network besides the noised latent and the text.
        pub condition: Conditioning;
        /// The loss of a sample.
        pub loss: Loss;
        /// The noise levels of flow matching.
        pub objective: Flow;
        /// The optimizer and its schedules.
        pub optimizer: Optimizer;
        /// The moving average of the trained weights.
        pub ema: Ema;
        /// The arrangement of the ranks.
        pub mesh: Mesh;
        /// Activation checkpointing.
        #[serde(deserialize_with = "Remat::without_removed")]
        pub remat: Remat;
        /// Block swap, offload and where they store tensors.
        pub memory: MemorySettings;
        /// When checkpoints are written and how many are kept.
        pub checkpoint: CheckpointPolicy;
        /// Metrics while training.
        pub log: Log;
        /// The videos that are made from the weights, and the validation loss.
        pub sample: Sampling;
        /// The start settings and the time limit of attempts.
        pub run: RunSettings;
    }
}

impl Recipe {
    /// Returns the recipe with every key that its task and trainer read, as [`Recipe::from_table`] reads it.
    pub fn to_table(&self) -> toml::Table {
        let mut table = toml::Table::try_from(self)
            .expect("every field of a recipe can be written as TOML: checked numbers fit 64 bits");
        for key in SCHEMA.iter().filter(|key| !key.is_for(self.reader())) {
            let (section, name) = key.parts();
            if section.is_empty() {
                table.remove(name);
            } else if let Some(section) = table.get_mut(section).and_then(toml::Value::as_table_mut) {
                section.remove(name);
            }
        }
        table.retain(|_, value| value.as_table().is_none_or(|section| !section.is_empty()));
        table
    }

    /// Returns every tensor of the model and its adapters: the root's first, then block by block. The adapters of a block come
    /// after its other tensors.
    pub fn param_specs(&self) -> Vec<ParamSpec> {
        let mut specs = crate::param_specs(&self.model);
        specs.extend(self.lora.param_specs(&self.model));
        specs.sort_by_key(|spec| spec.unit);
        specs
    }

    /// Returns the model for latents of a shape.
    ///
    /// # Errors
    /// Returns the reason why the model cannot take such latents.
    pub fn model_at(&self, shape: Shape) -> Result<Model, String> {
        let sized = self.at(shape);
        let model = &sized.model;
        if model.segments() != self.model.segments() {
            return Err(format!(
                "{} make {}, and model.segments is {}",
                units::counted(shape.frames, "latent frame"),
                units::counted(model.segments(), "segment"),
                self.model.segments()
            ));
        }
        match crate::check::broken_model(&sized) {
            Some(broken) => Err(broken.why),
            None => Ok(sized.model),
        }
    }

    /// Returns the recipe with the number of steps that its epochs take.
    ///
    /// # Errors
    /// If a rule between this number and other keys does not hold, such as a warm-up that is longer than the run.
    pub fn with_steps(&self, steps: u64) -> Result<Recipe, RecipeError> {
        let train = Train { length: Length::Steps(steps), ..self.train.clone() };
        let recipe = Recipe { train, ..self.clone() };
        recipe.check().map(|()| recipe)
    }

    /// Returns the shapes that latents may have; never [`Shapes::Auto`].
    pub fn shapes(&self) -> Shapes {
        match self.data.shapes {
            Shapes::Auto if self.buckets().is_some_and(|buckets| buckets.all().len() > 1) => Shapes::Grouped,
            Shapes::Auto => Shapes::One,
            given => given,
        }
    }

    /// Returns whether checkpoints contain only the trained parameters, and the path of the weights from which the frozen parameters
    /// are loaded.
    pub fn saves_adapters_only(&self) -> bool {
        self.lora.is_used() && self.train.trainable != Trainable::All
    }
}
