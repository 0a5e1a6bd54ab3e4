//! Batches of precomputed latents in an order that is exact over epochs, ranks and resumes.
//!
//! Samples are numbered from the start of the run. Number `k` is item `k % n` of the permutation of epoch `k / n`, so
//! every item is seen once per epoch whatever the batch size, and the position is one integer. While a step computes, a
//! thread reads the next batch; it is never further ahead than that.

use crate::seeds::{Purpose, normal, permutation};
use rundir::Failure;
use std::ops::Range;
use std::thread::{self, JoinHandle};
use tch::{Kind, Tensor};
use weights::{Dtype, Header, Index, LATENT, MOMENTS, Sample, TEXT, open_null_text};

/// A data set and the order of its current epoch.
#[derive(Debug)]
pub struct Data {
    index: Index,
    fingerprint: String,
    seed: u64,
    latent_scale: f64,
    /// `[text_len, text_dim]`, which replaces dropped texts; zeros if the recipe names none.
    null_text: Option<Tensor>,
    epoch: Option<(u64, Vec<usize>)>,
    ahead: Option<Ahead>,
}

/// Latents and texts of some samples, fp32.
#[derive(Debug)]
pub struct Batch {
    /// `[B, T, C, height, width]`
    pub latent: Tensor,
    /// `[B, text_len, text_dim]`
    pub text: Tensor,
}

/// A batch that a thread is reading.
#[derive(Debug)]
struct Ahead {
    numbers: Range<u64>,
    reading: JoinHandle<Result<Vec<Read>, Failure>>,
}

/// The bytes of a sample.
#[derive(Debug)]
struct Read {
    latent: Raw,
    /// Whether `latent` holds means and log-variances.
    moments: bool,
    texts: Vec<Raw>,
}

/// The bytes of a tensor.
#[derive(Debug)]
struct Raw {
    bytes: Vec<u8>,
    shape: Vec<i64>,
    dtype: Dtype,
}

impl Data {
    /// Opens and checks the data set.
    ///
    /// # Errors
    /// The first item that does not fit the model.
    pub fn open(recipe: &recipe::Recipe) -> Result<Self, Failure> {
        let index = Index::open(&recipe.data.index)?;
        let info = index.check(&recipe.model)?;
        let (mut fingerprint, mut null_text) = (info.fingerprint, None);
        if let Some(path) = recipe.data.null_text() {
            let one = Raw::read(&open_null_text(path, &recipe.model)?, TEXT)?.tensor();
            null_text = Some(one.repeat([recipe.model.segments as i64, 1]));
            fingerprint = format!("{fingerprint}-{}", rundir::file_sum(path)?.xxh3);
        }
        Ok(Data {
            index,
            fingerprint,
            null_text,
            seed: recipe.train.seed,
            latent_scale: recipe.model.latent_scale,
            epoch: None,
            ahead: None,
        })
    }

    /// Returns the fingerprint of the data set; equal items give an equal fingerprint.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Replaces the texts `[B, text_len, text_dim]` of samples that are not `kept`.
    pub fn drop_texts(&self, text: &Tensor, kept: &[bool]) -> Tensor {
        let kept = Tensor::from_slice(kept).view([-1, 1, 1]);
        let none = self.null_text.as_ref().map_or_else(|| Tensor::from(0f32), Tensor::shallow_clone);
        text.where_self(&kept, &none)
    }

    /// Returns the epoch of a sample and the number of samples before it in that epoch.
    pub fn position(&self, sample: u64) -> (u64, u64) {
        let n = self.index.samples.len() as u64;
        (sample / n, sample % n)
    }

    /// Returns the samples with these numbers, and starts to read `next`, the samples of the following call.
    ///
    /// `seed` is the key of the draws of latents whose file holds means and variances.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn batch(&mut self, numbers: Range<u64>, next: Range<u64>, seed: u64) -> Result<Batch, Failure> {
        let read = match self.ahead.take() {
            Some(ahead) if ahead.numbers == numbers => ahead.reading.join().expect("reading does not panic")?,
            _ => read_all(&self.samples(numbers.clone()))?,
        };
        let samples = self.samples(next.clone());
        // If no thread can be started, the next call reads the batch itself.
        let reading = thread::Builder::new().name("read ahead".into()).spawn(move || read_all(&samples)).ok();
        self.ahead = reading.map(|reading| Ahead { numbers: next, reading });

        let latents: Vec<Tensor> =
            numbers.zip(&read).map(|(number, read)| read.latent(seed, number) * self.latent_scale).collect();
        let texts: Vec<Tensor> =
            read.iter().map(|read| Tensor::cat(&read.texts.iter().map(Raw::tensor).collect::<Vec<_>>(), 0)).collect();
        Ok(Batch { latent: Tensor::stack(&latents, 0), text: Tensor::stack(&texts, 0) })
    }

    fn samples(&mut self, numbers: Range<u64>) -> Vec<Sample> {
        numbers
            .map(|number| {
                let item = self.item(number);
                self.index.samples[item].clone()
            })
            .collect()
    }

    /// Returns the item of sample `number`.
    fn item(&mut self, number: u64) -> usize {
        let (epoch, position) = self.position(number);
        let n = self.index.samples.len();
        let seed = self.seed;
        let order = match &mut self.epoch {
            Some((e, order)) if *e == epoch => order,
            other => &mut other.insert((epoch, permutation(seed, Purpose::Order, epoch, n))).1,
        };
        order[position as usize]
    }
}

fn read_all(samples: &[Sample]) -> Result<Vec<Read>, Failure> {
    samples.iter().map(Read::sample).collect()
}

impl Read {
    fn sample(sample: &Sample) -> Result<Self, Failure> {
        let header = Header::read(&sample.latent)?;
        let moments = header.tensors.contains_key(MOMENTS);
        let latent = Raw::read(&header, if moments { MOMENTS } else { LATENT })?;
        let mut texts = Vec::with_capacity(sample.text.len());
        for path in &sample.text {
            texts.push(Raw::read(&Header::read(path)?, TEXT)?);
        }
        Ok(Read { latent, moments, texts })
    }

    /// Returns the latent of sample `number`. If the file holds means and log-variances, every use of the sample draws a new
    /// latent.
    ///
    /// Source: ttt-video-dit `preembedding_dataset.py` and `regularizers.py`.
    fn latent(&self, seed: u64, number: u64) -> Tensor {
        let latent = self.latent.tensor();
        if !self.moments {
            return latent;
        }
        let [mean, log_variance] = latent.chunk(2, 1).try_into().expect("two halves");
        let noise = normal(seed, Purpose::Latent, number, &mean.size());
        mean + (log_variance.clamp(-30.0, 20.0) * 0.5).exp() * noise
    }
}

impl Raw {
    fn read(header: &Header, name: &str) -> Result<Self, Failure> {
        let info = header.tensor(name)?;
        let shape = info.shape.iter().map(|&d| d as i64).collect();
        Ok(Raw { bytes: header.read_tensor(name)?, shape, dtype: info.dtype })
    }

    /// The tensor, as fp32.
    fn tensor(&self) -> Tensor {
        Tensor::from_data_size(&self.bytes, &self.shape, kind(self.dtype)).to_kind(Kind::Float)
    }
}

/// Returns libtorch's kind for a dtype.
pub fn kind(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F64 => Kind::Double,
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::I64 => Kind::Int64,
        Dtype::I32 => Kind::Int,
        Dtype::U8 => Kind::Uint8,
        Dtype::Bool => Kind::Bool,
        _ => Kind::Int8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::{Utf8Path, Utf8PathBuf};
    use safetensors::tensor::TensorView;

    const ITEMS: u64 = 5;

    /// Five samples of one latent number each, the item's own; `log_variance` turns latents into moments.
    fn dataset(folder: &Utf8Path, log_variance: Option<f32>) -> recipe::Recipe {
        let write = |name: String, key: &str, shape: Vec<usize>, values: Vec<f32>| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let view = TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
            std::fs::write(folder.join(&name), safetensors::serialize([(key, view)], None).unwrap()).unwrap();
        };
        let mut index = String::new();
        for item in 0..ITEMS {
            let mean = vec![item as f32; 3 * 16 * 64];
            match log_variance {
                None => write(format!("{item}"), LATENT, vec![3, 16, 8, 8], mean),
                Some(v) => {
                    let frame = |f: usize| [&mean[f * 1024..][..1024], &[v; 1024][..]].concat();
                    write(format!("{item}"), MOMENTS, vec![3, 32, 8, 8], (0..3).flat_map(frame).collect());
                }
            }
            write(format!("{item}.text"), TEXT, vec![16, 4], vec![0.5; 64]);
            index += &format!("{{\"vid_emb\": \"{item}\", \"text_chunk_emb\": [\"{item}.text\"]}}\n");
        }
        std::fs::write(folder.join("index.jsonl"), index).unwrap();
        let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
        let sets = [format!("data.index={}", folder.join("index.jsonl")), "model.text_dim=4".into()];
        recipe::load(minimal.into(), &sets).unwrap().recipe
    }

    fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8PathBuf::from_path_buf(keep.path().to_owned()).unwrap();
        (keep, folder)
    }

    /// The items of a batch.
    fn items(batch: &Batch) -> Vec<i64> {
        let first = batch.latent.select(1, 0).select(1, 0).select(1, 0).select(1, 0);
        Vec::try_from(first.round().to_kind(Kind::Int64)).unwrap()
    }

    #[test]
    fn a_dropped_text_is_replaced_with_the_null_text() {
        let (_keep, folder) = temp();
        let mut recipe = dataset(&folder, None);
        let zeros = Data::open(&recipe).unwrap();
        let text = Tensor::ones([2, 16, 4], (Kind::Float, tch::Device::Cpu));
        let dropped = zeros.drop_texts(&text, &[true, false]);
        assert_eq!((dropped.get(0), dropped.get(1)), (text.get(0), text.get(1).zeros_like()));

        // Any text of the right shape is accepted.
        recipe.data.null_text = folder.join("0.text");
        let null = Data::open(&recipe).unwrap();
        assert_eq!(null.drop_texts(&text, &[true, false]).get(1), text.get(1) * 0.5);
        assert_ne!(null.fingerprint(), zeros.fingerprint());

        recipe.data.null_text = folder.join("0");
        let failure = Data::open(&recipe).unwrap_err();
        assert_eq!(failure.code, rundir::ErrorCode::TensorMismatch, "{failure}");
    }

    #[test]
    fn reading_ahead_gives_what_reading_in_place_gives_over_epochs_ranks_and_resumes() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, None);
        let in_place: Vec<i64> = (0..20)
            .map(|number| items(&Data::open(&recipe).unwrap().batch(number..number + 1, 0..1, 1).unwrap())[0])
            .collect();
        for epoch in in_place.chunks(ITEMS as usize) {
            let mut seen = epoch.to_vec();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3, 4]);
        }
        // Two ranks, two samples each and step; the second begins in the middle, as a resume does.
        for (rank, from) in [(0, 0), (1, 4)] {
            let mut data = Data::open(&recipe).unwrap();
            for first in (from..20).step_by(4) {
                let own = |first: u64| first + 2 * rank..first + 2 * rank + 2;
                let batch = data.batch(own(first), own(first + 4), 1).unwrap();
                assert_eq!(data.ahead.as_ref().unwrap().numbers, own(first + 4));
                assert_eq!(items(&batch), in_place[own(first).start as usize..own(first).end as usize]);
            }
        }
    }

    #[test]
    fn a_file_that_vanishes_fails_the_batch_that_wants_it_and_no_other() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, None);
        let mut data = Data::open(&recipe).unwrap();
        let gone = folder.join(data.samples(1..2)[0].latent.file_name().unwrap());
        std::fs::remove_file(&gone).unwrap();
        assert!(data.batch(0..1, 1..2, 1).is_ok());
        let failure = data.batch(1..2, 2..3, 1).unwrap_err();
        assert_eq!(failure.what, format!("cannot read {gone}"));
        assert!(data.batch(2..3, 3..4, 1).is_ok());
    }

    #[test]
    fn a_latent_is_drawn_from_its_mean_and_variance_by_the_number_of_the_sample() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, Some((0.25f32).ln()));
        let mut data = Data::open(&recipe).unwrap();
        let mut draw = |number: u64, seed| data.batch(number..number + 1, 0..1, seed).unwrap();
        let (first, again) = (draw(3, 1).latent, draw(3, 1).latent);
        assert_eq!(first.size(), [1, 3, 16, 8, 8]);
        assert_eq!(first, again);
        // The mean is a whole number that the draw is too wide to show in one place.
        let item = first.mean(Kind::Float).double_value(&[]);
        assert!((item - item.round()).abs() < 0.05, "{item}");
        assert!((first.std(true).double_value(&[]) - 0.5).abs() < 0.02);
        assert_ne!(draw(3, 2).latent, first);
        let sure = dataset(&folder, Some(-100.0));
        assert_eq!(items(&Data::open(&sure).unwrap().batch(3..4, 0..1, 1).unwrap()), [item.round() as i64]);
    }
}
