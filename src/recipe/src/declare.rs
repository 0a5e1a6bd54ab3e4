//! The macros that declare the sections of a recipe and the words of its keys.

/// An enum whose values are words in recipes.
pub(crate) trait Words {
    /// The words, in the order in which messages list them.
    const WORDS: &'static [&'static str];
}

/// Declares an enum and the word of each value in recipes.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$value_meta:meta])* $value:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$value_meta])* #[serde(rename = $word)] $value,)+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// Returns the word in recipes.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl crate::declare::Words for $name {
            const WORDS: &'static [&'static str] = &[$($word),+];
        }
    };
}

/// Declares a section of a recipe and its keys, each with its meaning, type, default, kind, readers and effect on a resume.
///
/// `pub struct Ema("ema", TRAIN, ResumeEffect::Training)` states the section, the jobs that read its keys, and the effect of a changed key
/// on a resume. A key is declared as
///
/// ```text
/// /// weight of the moving average in an update; 0: no average
/// pub decay: f64 = 0.0 => FRACTION;
/// ```
///
/// The comment is the documentation of the field and the text that `vidtui recipe` and errors show, in one line. A key without `= default`
/// must be set. What follows `=>` is a [`Spec`](crate::schema::Spec): the values that the key takes, and, if they differ from those of the
/// section, the jobs that read it ([`Spec::read_by`](crate::schema::Spec::read_by)) and its effect on a resume
/// ([`Spec::on_resume`](crate::schema::Spec::on_resume)).
///
/// A family after the effect, as in `("objective", TRAIN, ResumeEffect::Training, FamilyName::Wan)`, declares keys that only models of this
/// family read.
///
/// `"…" flatten field: Type;` before the keys declares a field whose keys are those of another declaration, for a value that several keys
/// describe. The recipe lists that declaration `with keys of`.
///
/// From the declaration follow the struct, its rows of [`SCHEMA`](crate::SCHEMA) and, with `with Default` after the name, its defaults. In
/// these, a key that must be set is empty.
macro_rules! section {
    ($(#[$meta:meta])* pub struct $name:ident $section:tt with Default { $($keys:tt)* }) => {
        section! { $(#[$meta])* pub struct $name $section { $($keys)* } }
        section! { @default $name { $($keys)* } }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident($section:literal, $jobs:expr, $effect:expr $(, $family:expr)?) {
            $($flat_doc:literal flatten $flat:ident: $flat_type:ty;)?
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])?
                pub $key:ident: $type:ty $(= $default:expr)? => $spec:expr;
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags, reason = "the comments are texts of the console")]
        pub struct $name {
            $(
                #[doc = $flat_doc]
                #[serde(flatten)]
                pub $flat: $flat_type,
            )?
            $(
                $(#[doc = $doc])+
                $(#[serde($($serde)*)])?
                pub $key: $type,
            )+
        }

        impl $name {
            /// The family that reads the keys; `None` for all.
            const OF_FAMILY: Option<crate::FamilyName> = section!(@family $($family)?);

            /// The keys of the section.
            pub(crate) const KEYS: &'static [crate::Key] = &[$(
                $spec.key(
                    concat!($section, ".", stringify!($key)),
                    concat!($($doc),+).trim_ascii(),
                    section!(@value $($default, $type)?),
                    ($jobs, $effect),
                    Self::OF_FAMILY,
                ),
            )+];
        }
    };
    (@default $name:ident {
        $(
            $(#[$meta:meta])+
            pub $key:ident: $type:ty $(= $default:expr)? => $spec:expr;
        )+
    }) => {
        /// The values of a recipe that sets none of the keys.
        impl Default for $name {
            fn default() -> Self {
                Self { $($key: section!(@field $($default)?),)+ }
            }
        }
    };
    (@family $family:expr) => { Some($family) };
    (@family) => { None };
    (@field $default:expr) => { $default };
    (@field) => { Default::default() };
    (@value $default:expr, $type:ty) => {
        Some(|| {
            let default: $type = $default;
            toml::Value::try_from(default).expect("a default has a TOML form")
        })
    };
    (@value) => { None };
}

/// Declares the recipe: the keys above all sections, as in [`section`], and the sections, in the order of `vidtui recipe show`.
macro_rules! recipe {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($jobs:expr, $effect:expr) {
            $(
                $(#[doc = $doc:literal])+
                pub $key:ident: $type:ty = $default:expr => $spec:expr;
            )+
        } with sections {
            $($(#[$section_meta:meta])+ pub $section:ident: $section_type:ident $(with keys of $flat:ident)? $(then keys of $($tail:ident)and+)?;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(rustdoc::broken_intra_doc_links, reason = "the comments of keys are texts of the console")]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $type,)+
            $($(#[$section_meta])+ pub $section: $section_type,)+
        }

        impl $name {
            /// The keys above all sections.
            const KEYS: &'static [crate::Key] = &[$(
                $spec.key(stringify!($key), concat!($($doc),+).trim_ascii(), section!(@value $default, $type), ($jobs, $effect), None),
            )+];

            /// The keys above all sections, then those of each section.
            pub(crate) const SECTIONS: &'static [&'static [crate::Key]] =
                &[Self::KEYS, $($($flat::KEYS,)? $section_type::KEYS, $($($tail::KEYS,)+)?)+];
        }
    };
}
