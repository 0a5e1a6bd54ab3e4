//! The keys of a recipe: path, type, default, meaning, readers and effect on a resume.

use toml::Value;

use crate::declare::Words;
use crate::train::TRAINABLE;
use crate::{FamilyName, JobKind, Reader, Recipe, ResumeEffect};

/// One key of a recipe: its type, default and meaning.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The section and the key, such as `optimizer.lr`.
    pub path: &'static str,
    /// The values that it takes.
    pub kind: Kind,
    /// Makes the default; a key without a default must be set.
    pub default: Option<fn() -> Value>,
    /// The meaning, with its unit, in one line. `vidtui recipe` and error messages show it.
    pub doc: &'static str,
    /// The jobs that read it.
    pub jobs: &'static [JobKind],
    /// The family whose models read it; `None` for keys of all.
    pub family: Option<FamilyName>,
    /// The jobs that need another value than an empty default or 0.
    needed_by: &'static [JobKind],
    /// The key that can be set instead of this one. Each replaces the other.
    pub alternative: Option<&'static str>,
    /// The key that makes this one unnecessary.
    pub unless: Option<&'static str>,
    /// The effect of another value on a run that continues from its checkpoint.
    pub on_resume: ResumeEffect,
}

/// The values that a key takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Letters, digits and `-`.
    Name,
    /// A path; relative to the folder of the file that sets it.
    Path,
    /// A path as `Path`, or an empty string for none.
    OptionalPath,
    /// A whole number.
    Int {
        /// The minimum.
        min: i64,
        /// The maximum, which keeps products of sizes within 64 bits.
        max: i64,
    },
    /// A number; integers are accepted.
    Float(Bounds),
    /// `true` or `false`.
    Bool,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `"all"`, `"qkvo"`, `"lora"` or a list of regular expressions.
    Trainable,
    /// A duration, such as `"1h30m"`, or `"none"`.
    Time,
    /// A list of regular expressions.
    Patterns,
    /// A list of tables with `match`, `lr` and `weight_decay`.
    Groups,
    /// A list of tables with `match`, a regular expression with named groups.
    LogPatterns,
    /// A list of tables, the entries of `data.buckets`.
    Buckets,
    /// A list of tables with `index`, `weight` and `repeats`.
    Sets,
    /// Any string.
    Text,
    /// A list of strings.
    Words,
    /// A list of these words.
    ListOf(&'static [&'static str]),
    /// A table of strings. Bases, files and flags each add their names to it.
    Variables,
}

impl Kind {
    /// Returns the words that a value may be; empty if there are too many to list.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Kind::OneOf(words) => words,
            Kind::Bool => &["true", "false"],
            Kind::Trainable => &TRAINABLE,
            _ => &[],
        }
    }

    /// Returns the type of a value in TOML.
    pub fn toml_type(self) -> &'static str {
        match self {
            Kind::Name | Kind::Path | Kind::OptionalPath | Kind::OneOf(_) | Kind::Text | Kind::Time => "string",
            Kind::Int { .. } => "integer",
            Kind::Float(_) => "float",
            Kind::Bool => "boolean",
            Kind::Trainable => "string or array",
            Kind::Patterns
            | Kind::Groups
            | Kind::LogPatterns
            | Kind::Buckets
            | Kind::Sets
            | Kind::Words
            | Kind::ListOf(_) => "array",
            Kind::Variables => "table",
        }
    }
}

/// The range of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bounds {
    /// Above 0.
    Positive,
    /// 0 or above.
    NotNegative,
    /// At least 0 and less than 1.
    Fraction,
    /// From 0 to 1.
    Share,
}

impl Key {
    /// Returns the section, which is empty for keys above all sections, and the key within it.
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }

    /// Returns whether a recipe with this job and family has the key.
    pub fn is_for(&self, reader: Reader) -> bool {
        self.jobs.contains(&reader.job) && self.family.is_none_or(|family| family == reader.family)
    }

    /// Returns whether a recipe for this job has to set the key.
    pub fn is_needed(&self, job: JobKind) -> bool {
        self.default.is_none() || self.needed_by.contains(&job)
    }

    /// Returns the default; `None` if the key must be set.
    pub fn default_value(&self) -> Option<Value> {
        self.default.map(|default| default())
    }

    /// Finds a key by its path.
    pub fn find(path: &str) -> Option<&'static Key> {
        SCHEMA.iter().find(|key| key.path == path)
    }
}

/// The properties of a key besides its name, meaning, type and default.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    kind: Kind,
    read_by: Option<&'static [JobKind]>,
    needed_by: &'static [JobKind],
    alternative: Option<&'static str>,
    unless: Option<&'static str>,
    on_resume: Option<ResumeEffect>,
    family: Option<FamilyName>,
}

impl Spec {
    /// Makes a key with these values. It has the readers and the effect on a resume of its section.
    pub const fn of(kind: Kind) -> Self {
        Spec { kind, read_by: None, needed_by: &[], alternative: None, unless: None, on_resume: None, family: None }
    }

    /// Sets the jobs that read the key.
    pub const fn read_by(self, jobs: &'static [JobKind]) -> Self {
        Spec { read_by: Some(jobs), ..self }
    }

    /// Sets the jobs that need another value than an empty default or 0.
    pub const fn needed_by(self, jobs: &'static [JobKind]) -> Self {
        Spec { needed_by: jobs, ..self }
    }

    /// Sets the key that makes this one unnecessary.
    pub const fn unless(self, other: &'static str) -> Self {
        Spec { unless: Some(other), ..self }
    }

    /// Sets the effect of another value on a run that continues from its checkpoint.
    pub const fn on_resume(self, effect: ResumeEffect) -> Self {
        Spec { on_resume: Some(effect), ..self }
    }

    /// Sets the family whose models read the key.
    pub const fn of_family(self, family: FamilyName) -> Self {
        Spec { family: Some(family), ..self }
    }

    /// Sets the key that can be set instead of this one.
    pub const fn or(self, alternative: &'static str) -> Self {
        Spec { alternative: Some(alternative), ..self }
    }

    /// Makes the key of a section with these readers, this effect on a resume and this family.
    pub const fn key(
        self,
        path: &'static str,
        doc: &'static str,
        default: Option<fn() -> Value>,
        (jobs, on_resume): (&'static [JobKind], ResumeEffect),
        family: Option<FamilyName>,
    ) -> Key {
        Key {
            path,
            kind: self.kind,
            default,
            doc,
            jobs: match self.read_by {
                Some(own) => own,
                None => jobs,
            },
            family: match self.family {
                Some(own) => Some(own),
                None => family,
            },
            needed_by: self.needed_by,
            alternative: self.alternative,
            unless: self.unless,
            on_resume: match self.on_resume {
                Some(own) => own,
                None => on_resume,
            },
        }
    }
}

pub(crate) const POSITIVE: Spec = Spec::of(Kind::Float(Bounds::Positive));
pub(crate) const NOT_NEGATIVE: Spec = Spec::of(Kind::Float(Bounds::NotNegative));
pub(crate) const FRACTION: Spec = Spec::of(Kind::Float(Bounds::Fraction));
pub(crate) const SHARE: Spec = Spec::of(Kind::Float(Bounds::Share));
pub(crate) const BOOL: Spec = Spec::of(Kind::Bool);
pub(crate) const PATH: Spec = Spec::of(Kind::Path);
pub(crate) const OPTIONAL_PATH: Spec = Spec::of(Kind::OptionalPath);
pub(crate) const TEXT: Spec = Spec::of(Kind::Text);
pub(crate) const TEXTS: Spec = Spec::of(Kind::Words);

/// A whole number within these bounds.
pub(crate) const fn int(min: i64, max: i64) -> Spec {
    Spec::of(Kind::Int { min, max })
}

/// One of the words of an enum.
pub(crate) const fn word<T: Words>() -> Spec {
    Spec::of(Kind::OneOf(T::WORDS))
}

/// A list of words of an enum.
pub(crate) const fn words_of<T: Words>() -> Spec {
    Spec::of(Kind::ListOf(T::WORDS))
}

pub(crate) const TRAIN: &[JobKind] = &[JobKind::Train];
pub(crate) const ENCODE: &[JobKind] = &[JobKind::Encode];
pub(crate) const SAMPLE: &[JobKind] = &[JobKind::Sample];
pub(crate) const COMMAND: &[JobKind] = &[JobKind::Command];
pub(crate) const TRAIN_AND_ENCODE: &[JobKind] = &[JobKind::Train, JobKind::Encode];
pub(crate) const TRAIN_AND_SAMPLE: &[JobKind] = &[JobKind::Train, JobKind::Sample];
pub(crate) const TRAIN_AND_COMMAND: &[JobKind] = &[JobKind::Train, JobKind::Command];
pub(crate) const ENCODE_AND_SAMPLE: &[JobKind] = &[JobKind::Encode, JobKind::Sample];
pub(crate) const ALL_BUT_ENCODE: &[JobKind] = &[JobKind::Train, JobKind::Sample, JobKind::Command];
/// The jobs of the embedded trainer.
pub(crate) const EMBEDDED: &[JobKind] = &[JobKind::Train, JobKind::Encode, JobKind::Sample];
pub(crate) const EVERY_JOB: &[JobKind] = &JobKind::ALL;

/// Keys of earlier versions that are read and ignored: what they chose is always done now.
pub(crate) const REMOVED: &[&str] = &["remat.shard_inputs"];
/// The largest value of a count, such as steps.
pub(crate) const MANY: i64 = 1_000_000_000_000;
/// The largest number of steps of a run. Imported runs may count tokens, or nanoseconds since 1970, instead of steps.
pub const MOST_STEPS: i64 = 1 << 61;

const COUNT: usize = {
    let (mut count, mut section) = (0, 0);
    while section < Recipe::SECTIONS.len() {
        count += Recipe::SECTIONS[section].len();
        section += 1;
    }
    count
};

/// Every key of a recipe, in the order of `vidtui recipe show`.
pub static SCHEMA: &[Key] = &{
    let mut keys = [Recipe::SECTIONS[0][0]; COUNT];
    let (mut at, mut section) = (0, 0);
    while section < Recipe::SECTIONS.len() {
        let mut key = 0;
        while key < Recipe::SECTIONS[section].len() {
            keys[at] = Recipe::SECTIONS[section][key];
            (at, key) = (at + 1, key + 1);
        }
        section += 1;
    }
    keys
};
