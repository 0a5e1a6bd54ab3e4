//! Finds out which network a file contains, from the names and shapes of its tensors.

use super::{ImageKeys, Layout, Release, WanModel, file_tensor, param_specs};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The shapes of the tensors of a file, by their names there.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// The network in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Recognised {
    /// The layout of the file.
    pub layout: Layout,
    /// The sizes. No shape depends on the width of a head, the length of texts or epsilon. The first is the argument of [`recognise`]; the
    /// others are those of the published networks.
    pub model: WanModel,
    /// The published network with these sizes; `None` if there is none.
    pub release: Option<Release>,
}

/// Why tensors are not a network of Wan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotWan {
    /// No layout has these names.
    #[error("no tensor has the name of a modulation of Wan, such as blocks.0.modulation or blocks.0.scale_shift_table")]
    Layout,
    /// A tensor is missing.
    #[error("the tensor {0} is missing")]
    Missing(String),
    /// The network has a tensor that Wan does not have, as variants of other authors do.
    #[error("the tensor {0} is not one of Wan")]
    Unknown(String),
    /// A tensor has a wrong shape.
    #[error("the tensor {name} has the shape {found:?} instead of {wanted:?}")]
    Shape {
        /// The name in the file.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that follows from the other tensors.
        wanted: Vec<usize>,
    },
    /// A tensor has a wrong number of axes.
    #[error("the tensor {name} has the shape {found:?} instead of one with {axes} axes")]
    Axes {
        /// The name in the file.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The number of axes.
        axes: usize,
    },
    /// The width of the network is not a multiple of the width of a head.
    #[error("the width {dim} of the network is not a multiple of the width {head_dim} of its heads")]
    Heads {
        /// The width of the network.
        dim: usize,
        /// The width of a head.
        head_dim: usize,
    },
}

/// Returns the network whose tensors have these names and shapes.
///
/// * `head_dim` — the width of a head: from the configuration, or 128 as in all published networks.
///
/// # Errors
/// The tensors are not those of a network of Wan. The error names the first difference.
pub fn recognise(tensors: &Shapes, head_dim: usize) -> Result<Recognised, NotWan> {
    let place = |layout: Layout, name: &str| file_tensor(layout, name).map(|tensor| tensor.name).unwrap_or_default();
    let has = |layout: &Layout| tensors.contains_key(&place(*layout, "blocks.0.modulation"));
    let layout = Layout::ALL.into_iter().find(has).ok_or(NotWan::Layout)?;
    let of = |name: &str| tensors.get(&place(layout, name)).map(Vec::as_slice);
    let size = |name: &str, axes: usize, axis: usize| {
        let shape = of(name).ok_or_else(|| NotWan::Missing(place(layout, name)))?;
        let wrong = || NotWan::Axes { name: place(layout, name), found: shape.to_vec(), axes };
        if shape.len() == axes { Ok(shape[axis]) } else { Err(wrong()) }
    };

    let dim = size("patch_embed.weight", 5, 0)?;
    if head_dim == 0 || !dim.is_multiple_of(head_dim) {
        return Err(NotWan::Heads { dim, head_dim });
    }
    let patch = |axis| size("patch_embed.weight", 5, axis);
    let patch_size = [patch(2)?, patch(3)?, patch(4)?];
    let image = match of("image_embed.norm1.weight") {
        None => None,
        Some(_) => Some(ImageKeys {
            dim: size("image_embed.norm1.weight", 1, 0)?,
            positions: of("image_embed.positions").map(|_| size("image_embed.positions", 3, 1)).transpose()?,
        }),
    };
    let layers = (0..).take_while(|block| of(&format!("blocks.{block}.modulation")).is_some()).count();
    let published = Release::TextToVideo14B.model();
    let model = WanModel {
        num_layers: layers,
        num_heads: dim / head_dim,
        head_dim,
        ffn_dim: size("blocks.0.mlp.up.weight", 2, 0)?,
        text_dim: size("text_embed.linear1.weight", 2, 1)?,
        freq_dim: size("time_embed.linear1.weight", 2, 1)?,
        in_channels: patch(1)?,
        out_channels: size("final.proj.weight", 2, 0)? / patch_size.iter().product::<usize>().max(1),
        patch_size,
        image,
        ..published
    };
    compare(tensors, layout, &model)?;
    let release = Release::of(&model);
    Ok(Recognised { layout, model, release })
}

/// Compares all names and shapes with those of a network.
fn compare(tensors: &Shapes, layout: Layout, model: &WanModel) -> Result<(), NotWan> {
    let mut known = BTreeSet::new();
    for spec in param_specs(model) {
        let Some(place) = file_tensor(layout, &spec.name) else { continue };
        let found = tensors.get(&place.name).ok_or_else(|| NotWan::Missing(place.name.clone()))?;
        if *found != spec.shape {
            return Err(NotWan::Shape { name: place.name, found: found.clone(), wanted: spec.shape });
        }
        known.insert(place.name);
    }
    match tensors.keys().find(|name| !known.contains(*name)) {
        Some(unknown) => Err(NotWan::Unknown(unknown.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(model: &WanModel, layout: Layout) -> Shapes {
        let place = |name: &str| file_tensor(layout, name).unwrap().name;
        param_specs(model).into_iter().map(|spec| (place(&spec.name), spec.shape)).collect()
    }

    #[test]
    fn every_published_network_is_recognised_in_every_layout() {
        for (release, layout) in
            Release::ALL.into_iter().flat_map(|release| Layout::ALL.map(|layout| (release, layout)))
        {
            let model = release.model();
            let found = recognise(&file(&model, layout), 128).unwrap();
            assert_eq!(found, Recognised { layout, model, release: Some(release) });
        }
    }

    #[test]
    fn a_network_of_other_sizes_is_recognised_without_a_release() {
        let model = WanModel { num_layers: 2, ..Release::TextToVideo1_3B.model() };
        let found = recognise(&file(&model, Layout::Original), 128).unwrap();
        assert_eq!((found.model, found.release), (model, None));
    }

    #[test]
    fn the_first_difference_is_named() {
        let model = Release::ImageToVideo14B.model();
        let whole = file(&model, Layout::Original);
        let refused = |change: &dyn Fn(&mut Shapes)| {
            let mut tensors = whole.clone();
            change(&mut tensors);
            recognise(&tensors, 128).unwrap_err()
        };
        let gap = refused(&|tensors| drop(tensors.remove("blocks.3.norm3.bias")));
        assert_eq!(gap, NotWan::Missing("blocks.3.norm3.bias".into()));
        let variant = refused(&|tensors| drop(tensors.insert("vace_blocks.0.modulation".into(), vec![1, 6, 5120])));
        assert_eq!(variant, NotWan::Unknown("vace_blocks.0.modulation".into()));
        let flat = refused(&|tensors| drop(tensors.insert("patch_embedding.weight".into(), vec![5120, 144])));
        assert!(matches!(flat, NotWan::Axes { name, .. } if name == "patch_embedding.weight"));
        let narrow = refused(&|tensors| drop(tensors.insert("ffn.0".into(), vec![1])));
        assert_eq!(narrow, NotWan::Unknown("ffn.0".into()));
        assert_eq!(recognise(&Shapes::new(), 128), Err(NotWan::Layout));
        assert_eq!(recognise(&whole, 100), Err(NotWan::Heads { dim: 5120, head_dim: 100 }));
    }
}
