//! Finds and checks the tensors that a recipe's condition (`[condition]`: image to video or inpainting) needs for each sample, besides
//! its latent and its texts.

use crate::import::IMPORTED;
use crate::index::{DTYPES, Index};
use crate::store::{self, ConditionSpec, StoreSpec};
use crate::table::{Located, Table};
use camino::Utf8Path;
use recipe::{ConditionKind, Conditioning, Model, Shape};
use rundir::{ErrorCode, Failure};
use std::collections::HashMap;
use weights::Header;

/// The name of the tensor with the latent of the first image: `[1, C, H, W]`, or its means and log-variances `[1, 2C, H, W]`.
pub const IMAGE: &str = "image";
/// The name of the tensor with the share of each latent pixel that is not masked, from 0 to 1: `[T, 1, H, W]`.
pub const KNOWN: &str = "known";
/// The name of the tensor with the latent of the masked video, whose hidden pixels are grey for Wan and black for CogVideoX-Fun:
/// `[T, C, H, W]`, or its means and log-variances `[T, 2C, H, W]`.
pub const MASKED: &str = "masked";

/// Returns the names of the tensors that a condition needs. In a store, a name is the role of a tensor that a clip has besides its
/// latent. With one file per clip, the tensors are in the file of the latent.
pub fn condition_tensors(kind: ConditionKind) -> &'static [&'static str] {
    match kind {
        // The first frame is that of the latent.
        ConditionKind::None | ConditionKind::FirstFrame => &[],
        ConditionKind::ImageClip => &[MASKED],
        ConditionKind::Image => &[IMAGE],
        ConditionKind::Inpaint => &[KNOWN, MASKED],
    }
}

/// Returns the role of a tensor of the random draw `draw` of the condition, from 0: `masked`, `masked.1`, `masked.2`…
pub fn drawn_role(role: &str, draw: usize) -> String {
    if draw == 0 { role.to_owned() } else { format!("{role}.{draw}") }
}

/// Returns the shape of a drawn tensor of a condition, for a clip whose latent has the shape `latent`.
fn shape(role: &str, model: &Model, latent: Shape) -> [usize; 4] {
    let (frames, channels) = match role {
        IMAGE => (1, model.out_channels),
        KNOWN => (latent.frames, 1),
        _ => (latent.frames, model.out_channels),
    };
    [frames, channels, latent.height, latent.width]
}

impl Table {
    /// Finds the tensors of a condition for every sample, and checks that they fit `model` and the sample's latent.
    ///
    /// # Errors
    /// The data set was encoded with another condition, or a sample lacks a tensor or has it in another shape; the failure names the
    /// first such sample.
    pub fn with_conditions(mut self, condition: &Conditioning, model: &Model) -> Result<Self, Failure> {
        let roles = condition_tensors(condition.kind);
        let all: Vec<(&str, String)> = (0..condition.draws())
            .flat_map(|draw| roles.iter().map(move |role| (*role, drawn_role(role, draw))))
            .collect();
        if all.is_empty() {
            return Ok(self);
        }
        let path = self.path.clone();
        let mut headers = Headers::default();
        match crate::open::store_folder(&path) {
            Some(folder) => {
                check_spec(&folder, condition)?;
                store::read_index(&folder, |number, line| {
                    let latent = self.shape(self.extras_len() / all.len());
                    for (role, name) in &all {
                        let place = line.extra.get(name).ok_or_else(|| missing(&path, number, name))?;
                        let file = folder.join(&place.shard);
                        let found = headers.find(&file, (role, &place.name), (model, latent))?;
                        let found = found.ok_or_else(|| missing(&path, number, name))?;
                        self.push_extra(&Located { sum: place.xxh3, ..found });
                    }
                    Ok(())
                })?;
            }
            None => {
                for sample in Index::open(&path)?.samples {
                    // Each file belongs to one sample.
                    headers = Headers::default();
                    let latent = self.shape(self.extras_len() / all.len());
                    for (role, name) in &all {
                        let found = headers.find(&sample.latent, (role, name), (model, latent))?;
                        self.push_extra(&found.ok_or_else(|| missing(&path, sample.line, name))?);
                    }
                }
            }
        }
        Ok(self)
    }
}

/// The hint of failures here: how to make a data set that fits the recipe.
const ENCODE: &str =
    "encode the videos for this recipe: vidtui data encode VIDEOS --for RECIPE --model FOLDER --out DATA";

/// Checks that a store has the condition of a recipe, with its noise and masks.
fn check_spec(data: &Utf8Path, condition: &Conditioning) -> Result<(), Failure> {
    let spec = StoreSpec::read(data)?;
    let Some(wanted) = ConditionSpec::of(condition)? else { return Ok(()) };
    let kind = |spec: &ConditionSpec| spec.kind.name();
    let Some(made) = &spec.condition else {
        let needs = match wanted.kind {
            ConditionKind::Image => "the latent of each clip's first image",
            ConditionKind::ImageClip => "the latent of each clip with grey frames after the first",
            _ => "masks and the latents of masked videos",
        };
        let why = match spec.frames.mode == IMPORTED {
            true => format!("the data set was {}, which prepared no such tensors", spec.vae.name),
            false => "the data set was encoded without [condition]".into(),
        };
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            format!("the data set {data} does not fit the recipe"),
            format!("condition.kind = \"{}\" needs {needs}, and {why}", kind(&wanted)),
            ENCODE,
        ));
    };
    let masks = |spec: &ConditionSpec| format!("[{}]", spec.masks.join(", "));
    let rows = [
        ("kind", made.kind != wanted.kind, kind(made).to_owned(), kind(&wanted).to_owned()),
        ("image_noise", made.noise != wanted.noise, made.noise.to_string(), wanted.noise.to_string()),
        ("masks", made.masks != wanted.masks, masks(made), masks(&wanted)),
        ("draws", made.draws < wanted.draws, made.draws.to_string(), wanted.draws.to_string()),
    ];
    let Some((key, _, made, wanted)) = rows.into_iter().find(|(_, differs, ..)| *differs) else { return Ok(()) };
    Err(Failure::new(
        ErrorCode::InvalidDataset,
        format!("the data set {data} does not fit the recipe"),
        format!("it was made with condition.{key} = {made}, the recipe has {wanted}"),
        format!("{ENCODE}; or set condition.{key} = {made}"),
    ))
}

/// The headers of files that were read.
#[derive(Default)]
struct Headers(HashMap<camino::Utf8PathBuf, Header>);

impl Headers {
    /// Finds and checks the tensor of a role. Returns `None` if the file has no tensor of that name.
    fn find(
        &mut self,
        file: &Utf8Path,
        (role, name): (&str, &str),
        (model, latent): (&Model, Shape),
    ) -> Result<Option<Located>, Failure> {
        if !self.0.contains_key(file) {
            self.0.insert(file.to_owned(), Header::read(file)?);
        }
        let header = &self.0[file];
        let Some(info) = header.tensors.get(name) else { return Ok(None) };
        let wanted = shape(role, model, latent);
        let twice = [wanted[0], 2 * wanted[1], wanted[2], wanted[3]];
        let moments = role != KNOWN && info.shape == twice;
        if (info.shape != wanted && !moments) || !DTYPES.contains(&info.dtype) {
            return Err(Failure::new(
                ErrorCode::InvalidDataset,
                format!("cannot use the tensor {name} of {file}"),
                format!("it is {} {:?}, the recipe expects {wanted:?} in F32, F16 or BF16", info.dtype, info.shape),
                ENCODE,
            ));
        }
        Ok(Some(Located::of(header, info, moments)))
    }
}

fn missing(path: &Utf8Path, line: usize, role: &str) -> Failure {
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("line {line} of {path} has no tensor {role}"),
        "the recipe's condition.kind needs this tensor for every sample",
        ENCODE,
    )
}
