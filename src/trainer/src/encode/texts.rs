//! The stage of captions: tokenizes them and runs the text encoder, which is loaded for this stage and freed after it.

// N captions, L tokens, D width of the text encoder.

use super::fit::in_halves;
use super::report::{Counts, EncodeStage};
use super::{Left, Rank, SharedQueue, Stop, StoredTensor, claim, commit, is_of_item, not_finite, queue};
use dataset::EncodeInputs;
use dataset::store::{Held, Item, ItemKind, Range, Work};
use encoders::T5Encoder;
use rundir::Failure;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// Encodes captions.
pub struct Texts<'a> {
    inputs: &'a EncodeInputs,
    folder: camino::Utf8PathBuf,
    kind: Kind,
    device: Device,
    len: usize,
    batch: usize,
    counts: Counts,
}

impl<'a> Texts<'a> {
    pub fn new(rank: &Rank<'_>, inputs: &'a EncodeInputs, kind: Kind, counts: Counts) -> Self {
        let encode = &rank.recipe.encode;
        Self {
            inputs,
            folder: rank.recipe.encoders.folder.join("text_encoder"),
            kind,
            device: rank.device,
            len: encode.text_len,
            batch: encode.batch,
            counts,
        }
    }

    /// Encodes captions until none is left to claim, or a stop is requested.
    pub fn work(&mut self, queue: &SharedQueue, stop: &Stop) -> Result<Left, Failure> {
        let mut encoder: Option<T5Encoder> = None;
        loop {
            if stop.source().is_some() {
                return Ok(Left::Held);
            }
            let mut range = match claim(queue, ItemKind::Text)? {
                Ok(range) => range,
                Err(left) => return Ok(left),
            };
            if encoder.is_none() && !range.items().is_empty() {
                encoder = Some(T5Encoder::open(&self.folder, self.kind, self.device)?);
            }
            if let Some(encoder) = &encoder {
                self.counts.queued(EncodeStage::Text, range.items().len());
                let encoded = self.encode(encoder, &mut range, stop);
                self.counts.released(&[EncodeStage::Text]);
                encoded?;
            }
            range.finish()?;
        }
    }

    fn encode(&self, encoder: &T5Encoder, range: &mut Range, stop: &Stop) -> Result<(), Failure> {
        let items = range.items().to_vec();
        for group in items.chunks(self.batch) {
            if stop.source().is_some() {
                return Ok(());
            }
            self.counts.begun(EncodeStage::Text, group.len());
            if self.group(encoder, range, group)? == Held::Lost {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Encodes some captions together, or in halves if memory is short, and stores them.
    fn group(&self, encoder: &T5Encoder, range: &mut Range, items: &[Item]) -> Result<Held, Failure> {
        let began = Instant::now();
        let encoded = in_halves(0..items.len(), &mut |part| encoder.embed(&self.ids(&items[part])?));
        for (part, result) in encoded {
            let items = &items[part];
            let texts_nld = match result {
                Ok(texts) => texts,
                Err(failure) if is_of_item(&failure) && items.len() == 1 => {
                    if self.fail(range, &items[0], failure)? == Held::Lost {
                        return Ok(Held::Lost);
                    }
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if self.store(range, items, &texts_nld, began)? == Held::Lost {
                return Ok(Held::Lost);
            }
        }
        Ok(Held::Mine)
    }

    /// Returns the tokens `[N, L]` of captions.
    fn ids(&self, items: &[Item]) -> Result<Tensor, Failure> {
        let mut ids: Vec<i64> = Vec::new();
        for item in items {
            let Work::Text { caption } = &item.work else { return Err(queue::wrong_stage(&item.name)) };
            ids.extend(self.inputs.tokenizer.encode(caption, self.len));
        }
        Ok(Tensor::from_slice(&ids).view([items.len() as i64, self.len as i64]).to_device(self.device))
    }

    fn store(&self, range: &mut Range, items: &[Item], texts_nld: &Tensor, began: Instant) -> Result<Held, Failure> {
        for (row, item) in items.iter().enumerate() {
            let held = match StoredTensor::of("", &texts_nld.get(row as i64)) {
                None => self.fail(range, item, not_finite(format!("cannot encode the caption {}", item.name)))?,
                Some(text) => {
                    let bytes = text.len();
                    let held = commit(range, item, &[], &[text])?;
                    if held == Held::Mine {
                        self.counts.passed(EncodeStage::Text, began, bytes);
                        self.counts.stored(EncodeStage::Text);
                    }
                    held
                }
            };
            if held == Held::Lost {
                return Ok(Held::Lost);
            }
        }
        Ok(Held::Mine)
    }

    fn fail(&self, range: &mut Range, item: &Item, failure: Failure) -> Result<Held, Failure> {
        rundir::log!("{}: {failure}", item.name);
        self.counts.failed_in(EncodeStage::Text);
        let held = range.fail(item, failure.clone())?;
        if held == Held::Mine {
            self.counts.quarantined(&item.name, failure);
        }
        Ok(held)
    }
}
