//! Plans an encode: which items the store already has, which are new, and which are stale and why.

use super::index::{INDEX, Lines, malformed};
use super::spec::{SPEC, StoreSpec};
use super::{Line, failures};
use crate::{ClipManifest, Stamp};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Bucket;
use rundir::{ErrorCode, Failure};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// A clip that the data set should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedClip {
    /// The id of the clip, unique within the data set.
    pub id: String,
    /// The video.
    pub source: Utf8PathBuf,
    /// The hash of the video.
    pub content: String,
    /// The size and modification time of the video when it was checked, to detect a later change.
    #[serde(default)]
    pub stamp: Stamp,
    /// One caption per segment.
    pub captions: Vec<String>,
    /// The bucket at whose size the clip is encoded; `None` if all clips have one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Bucket>,
}

impl WantedClip {
    /// Returns the key of its latent.
    pub fn latent_key(&self, spec: &StoreSpec) -> String {
        spec.at(self.bucket).latent_key(&self.content)
    }

    fn latent(&self, spec: &StoreSpec) -> Item {
        let Self { id, source, content, stamp, bucket, .. } = self.clone();
        Item { key: self.latent_key(spec), name: id, work: Work::Video { source, content, stamp, bucket } }
    }
}

/// The kind of an item. Texts are encoded first, so that the text encoder can be freed before the VAE is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// Captions are encoded to texts.
    Text,
    /// Videos are encoded to latents.
    Latent,
}

/// One caption or video to encode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The key of the result.
    pub key: String,
    /// The name of the tensor: the id of the clip, or the key of the text.
    pub name: String,
    /// The source of the item.
    pub work: Work,
}

/// The source of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// A caption, possibly the empty one.
    Text {
        /// The caption.
        caption: String,
    },
    /// A video.
    Video {
        /// The file.
        source: Utf8PathBuf,
        /// Its hash.
        content: String,
        /// The size and modification time of the video when it was checked, to detect a later change.
        #[serde(default)]
        stamp: Stamp,
        /// The bucket at whose size the video is encoded; `None` if all videos have one size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bucket: Option<Bucket>,
    },
}

impl Work {
    /// Returns the kind of the item.
    pub fn kind(&self) -> ItemKind {
        match self {
            Self::Text { .. } => ItemKind::Text,
            Self::Video { .. } => ItemKind::Latent,
        }
    }

    /// Returns the bucket at whose size a video is encoded; `None` for a text, or if all videos have one size.
    pub fn bucket(&self) -> Option<Bucket> {
        match self {
            Self::Text { .. } => None,
            Self::Video { bucket, .. } => *bucket,
        }
    }
}

/// Whether an encode retries items that failed in an earlier encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quarantined {
    /// Failed items are left out and listed.
    Skip,
    /// Failed items are retried.
    Retry,
}

/// The plan of an encode.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Clips whose latent and texts the store has.
    pub reuse: usize,
    /// Clips that the store does not have.
    pub new: usize,
    /// Clips of the store whose latent or text has to be encoded again, or that are no longer in the manifest, and why.
    pub stale: Vec<(String, String)>,
    /// Items that failed in an earlier encode and are left out, with their failures.
    pub quarantined: Vec<(Item, Failure)>,
    /// The items to encode: texts, then latents in the order of the manifest.
    pub items: Vec<Item>,
    pub(super) spec: StoreSpec,
    pub(super) clips: Vec<WantedClip>,
}

impl Plan {
    /// Returns the number of items of a kind.
    pub fn count(&self, kind: ItemKind) -> usize {
        self.items.iter().filter(|item| item.work.kind() == kind).count()
    }

    /// Returns whether nothing has to be done.
    pub fn is_done(&self) -> bool {
        self.items.is_empty() && self.new == 0 && self.stale.is_empty()
    }

    /// Returns the summary that users see: `reuse 9,812 · new 37 · stale 151 (VAE changed)`.
    pub fn summary(&self) -> String {
        let mut why: Vec<&str> = Vec::new();
        for (_, reason) in &self.stale {
            if !why.contains(&reason.as_str()) {
                why.push(reason);
            }
        }
        let shown = match why.len() {
            0 => String::new(),
            n if n > 3 => format!(" ({}; {} more)", why[..3].join("; "), n - 3),
            _ => format!(" ({})", why.join("; ")),
        };
        let number = |n: usize| units::grouped(n as u64);
        let mut text = format!(
            "reuse {} · new {} · stale {}{shown}",
            number(self.reuse),
            number(self.new),
            number(self.stale.len())
        );
        if !self.quarantined.is_empty() {
            text += &format!(" · failed earlier {}", number(self.quarantined.len()));
        }
        text
    }
}

/// Plans an encode of the clips of a manifest that are not excluded. Writes nothing.
///
/// # Errors
/// The manifest has no usable clip, or two clips with one id; or the store cannot be read.
pub fn plan_encode(
    data: &Utf8Path,
    manifest: &ClipManifest,
    spec: &StoreSpec,
    quarantined: Quarantined,
) -> Result<Plan, Failure> {
    let clips = manifest.clips.iter().filter(|clip| clip.excluded.is_none());
    let clips = clips.map(|clip| WantedClip {
        id: clip.id.clone(),
        source: clip.path.clone(),
        content: clip.content.clone(),
        stamp: clip.stamp,
        captions: clip.captions().map(str::to_owned).collect(),
        bucket: clip.bucket,
    });
    plan_clips(data, clips.collect(), spec, quarantined)
}

/// Plans an encode of clips.
pub(crate) fn plan_clips(
    data: &Utf8Path,
    clips: Vec<WantedClip>,
    spec: &StoreSpec,
    quarantined: Quarantined,
) -> Result<Plan, Failure> {
    check_ids(data, &clips)?;
    let old = Old::read(data)?;
    let failed: HashMap<String, Failure> = match quarantined {
        Quarantined::Retry => HashMap::new(),
        Quarantined::Skip => {
            failures::old_failures(data)?.into_iter().map(|(item, failure)| (item.key, failure)).collect()
        }
    };
    let mut plan = Plan {
        reuse: 0,
        new: 0,
        stale: Vec::new(),
        quarantined: Vec::new(),
        items: Vec::new(),
        spec: spec.clone(),
        clips: Vec::new(),
    };
    let (mut texts, mut latents) = (Vec::new(), Vec::new());
    let (mut planned, mut names): (HashSet<String>, HashSet<String>) = Default::default();
    let mut add = |items: &mut Vec<Item>, item: Item, have: bool| {
        if !have && planned.insert(item.key.clone()) {
            items.push(item);
        }
    };
    // The text that replaces dropped captions.
    let text = |caption: &str| {
        let key = spec.text_key(caption);
        Item { name: key.clone(), key, work: Work::Text { caption: caption.to_owned() } }
    };
    let empty = text("");
    let has_empty = old.texts.contains(&empty.key);
    add(&mut texts, empty, has_empty);
    for clip in &clips {
        names.insert(clip.id.clone());
        let latent = clip.latent(spec);
        let of_clip: Vec<Item> = clip.captions.iter().map(|caption| text(caption)).collect();
        // If the latent or a text of a clip failed, the clip is left out, and its other tensors are not needed.
        let hopeless = std::iter::once(&latent).chain(&of_clip).find_map(|item| {
            let there = old.latents.contains(&item.key) || old.texts.contains(&item.key);
            (!there).then(|| failed.get(&item.key).map(|failure| (item.clone(), failure.clone()))).flatten()
        });
        if let Some(failed) = hopeless {
            plan.quarantined.push(failed);
            continue;
        }
        let has_latent = old.latents.contains(&latent.key);
        let has_texts = of_clip.iter().all(|text| old.texts.contains(&text.key));
        for text in of_clip {
            let has = old.texts.contains(&text.key);
            add(&mut texts, text, has);
        }
        add(&mut latents, latent, has_latent);
        match (has_latent && has_texts, old.clips.get(&clip.id)) {
            (true, _) => plan.reuse += 1,
            (false, None) => plan.new += 1,
            (false, Some(was)) => plan.stale.push((clip.id.clone(), old.why(was, clip, spec, has_latent, has_texts))),
        }
    }
    let gone = old.order.iter().filter(|id| !names.contains(*id));
    plan.stale.extend(gone.map(|id| (id.clone(), "it is not in the manifest".to_owned())));
    plan.items = texts;
    plan.items.extend(latents);
    plan.clips = clips;
    Ok(plan)
}

fn check_ids(data: &Utf8Path, clips: &[WantedClip]) -> Result<(), Failure> {
    let bad = |why: String, fix: &str| {
        Err(Failure::new(ErrorCode::InvalidDataset, format!("cannot encode the data set {data}"), why, fix))
    };
    if clips.is_empty() {
        return bad("the manifest has no clip that is not excluded".into(), "see the reasons in the manifest");
    }
    let mut seen = HashSet::new();
    for clip in clips {
        if !seen.insert(clip.id.as_str()) {
            return bad(format!("two clips of the manifest have the id '{}'", clip.id), "give each clip its own id");
        }
        // The shard format reserves this name.
        if clip.id == "__metadata__" || clip.id.is_empty() {
            return bad(format!("'{}' cannot be the id of a clip", clip.id), "give the clip another id");
        }
    }
    Ok(())
}

/// The content of a store before the encode.
#[derive(Default)]
struct Old {
    spec: Option<StoreSpec>,
    latents: HashSet<String>,
    texts: HashSet<String>,
    clips: HashMap<String, Was>,
    /// The ids in the order of the index.
    order: Vec<String>,
}

/// A clip of a store.
struct Was {
    content: String,
    latent_key: String,
    text_keys: Vec<String>,
}

impl Old {
    fn read(data: &Utf8Path) -> Result<Self, Failure> {
        let path = data.join(INDEX);
        let mut old = Self::default();
        if !path.exists() {
            return Ok(old);
        }
        // Keys determine what is stale; the specification is only used to explain why. After a crash, it can be newer than the index.
        old.spec = if data.join(SPEC).exists() { Some(StoreSpec::read(data)?) } else { None };
        let (head, mut lines) = Lines::open(&path)?;
        if head.empty_text.is_some() {
            old.texts.insert(head.empty_key.clone());
        }
        while let Some((number, line)) = lines.next()? {
            let line: Line = serde_json::from_slice(line).map_err(|e| malformed(&path, number, &e))?;
            old.latents.insert(line.latent_key.clone());
            old.texts.extend(line.text_keys.iter().cloned());
            old.order.push(line.id.clone());
            let Line { id, content, latent_key, text_keys, .. } = line;
            old.clips.insert(id, Was { content, latent_key, text_keys });
        }
        lines.end(&head)?;
        Ok(old)
    }

    /// Explains why a clip is stale.
    fn why(&self, was: &Was, clip: &WantedClip, spec: &StoreSpec, has_latent: bool, has_texts: bool) -> String {
        let mut why = Vec::new();
        let changed = |names: Vec<String>| names.into_iter().map(|name| format!("{name} changed"));
        if !has_latent {
            if was.content != clip.content {
                why.push("the video changed".to_owned());
            }
            why.extend(changed(self.spec.as_ref().map_or(Vec::new(), |old| spec.latent_changes(old))));
        }
        if !has_texts {
            let of_spec = self.spec.as_ref().map_or(Vec::new(), |old| spec.text_changes(old));
            let old_keys =
                self.spec.as_ref().map(|old| clip.captions.iter().map(|c| old.text_key(c)).collect::<Vec<_>>());
            if of_spec.is_empty() || old_keys.is_some_and(|keys| keys != was.text_keys) {
                why.push("the caption changed".to_owned());
            }
            why.extend(changed(of_spec).filter(|name| !why.contains(name)).collect::<Vec<_>>());
        }
        if why.is_empty() {
            why.push(format!("its key {} changed", was.latent_key));
        }
        why.join(", ")
    }
}
