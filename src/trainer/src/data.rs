//! Batches of precomputed latents in the order of [`dataset::order`].
//!
//! Samples are numbered from the start of the run, so the position in the data is one integer. A thread reads samples through a
//! [`Reading`].

use crate::conditions;
use crate::exchange::agree_on;
use crate::seeds::{Purpose, normal};
use crate::torch_failure::failed;
use c10d::Group;
use dataset::order::{Order, OrderedItem, StepPlan};
use dataset::{RawTensor, Reader, Slot, TEXT, Table, open_null_text};
use dit::family::Conditions;
use recipe::{Conditioning, Flops, Model, Recipe};
use rundir::{ErrorCode, Failure};
use std::ops::Range;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};
use weights::Dtype;

/// The data sets of a recipe, and the order of their items.
#[derive(Debug)]
pub struct Data {
    table: Table,
    source: Source,
    fingerprint: String,
    order: Order,
    /// The steps of the run.
    steps: u64,
    global_batch: usize,
    /// The work for one sample of each bucket.
    work: Vec<StepWork>,
}

/// The files of the data sets, and the settings that turn their tensors into batches.
#[derive(Debug)]
struct Source {
    reader: Arc<Reader>,
    model: Model,
    condition: Conditioning,
    /// The text that replaces dropped texts, `[text_len, text_dim]`; zeros if neither the recipe nor the store has one.
    null_text: Option<Tensor>,
    /// Threads that read the samples of a batch.
    readers: usize,
}

/// Samples that can be read in any thread.
#[derive(Debug)]
pub struct Reading {
    source: Source,
    numbers: Range<u64>,
    samples: Vec<[Vec<Slot>; 3]>,
}

/// The computation that some samples need.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepWork {
    /// Tokens: text and video.
    pub tokens: f64,
    /// Floating-point operations of the forward pass.
    pub forward_flops: f64,
}

/// Latents and texts of some samples, fp32.
#[derive(Debug)]
pub struct Batch {
    /// `[B, T, C, height, width]`
    pub latent: Tensor,
    /// `[B, text_len, text_dim]`
    pub text: Tensor,
    /// The conditions that the recipe names.
    pub conditions: Conditions,
}

/// The tensors of a sample.
#[derive(Debug)]
struct Read {
    latent: RawTensor,
    texts: Vec<RawTensor>,
    /// The tensors of the recipe's condition, in the order of [`dataset::condition_tensors`].
    extras: Vec<RawTensor>,
}

impl Data {
    /// Opens and checks the data set. Rank 0 reads the index and sends its table to the other ranks. A collective.
    ///
    /// # Errors
    /// The index cannot be read, or an item does not fit the model. Every rank returns the failure of the rank that found it.
    pub fn open(recipe: &Recipe, world: &Group) -> Result<Self, Failure> {
        let table = Self::open_table(recipe, world)?;
        let ordered = Order::checked(recipe, &table);
        let opened = ordered.and_then(|(order, forecast)| Self::of_table(recipe, table, order, forecast.steps));
        agree_on(world, opened)
    }

    /// Opens the data set as [`Data::open`] does, for batches of single samples that use each item once per epoch.
    ///
    /// # Errors
    /// As [`Data::open`].
    pub fn open_single(recipe: &Recipe, world: &Group) -> Result<Self, Failure> {
        let table = Self::open_table(recipe, world)?;
        let (order, steps) = (Order::single(recipe, &table), table.len() as u64);
        agree_on(world, Self::of_table(recipe, table, order, steps))
    }

    fn open_table(recipe: &Recipe, world: &Group) -> Result<Table, Failure> {
        let table = if world.rank() == 0 { Table::of(recipe).map(Some) } else { Ok(None) };
        share(world, agree_on(world, table)?)
    }

    fn of_table(recipe: &Recipe, table: Table, order: Order, steps: u64) -> Result<Self, Failure> {
        let works = order.buckets().iter().map(|bucket| {
            let model = recipe.at(bucket.shape).model;
            StepWork { tokens: model.seq_len() as f64, forward_flops: Flops::forward(&model).total() }
        });
        let work = works.collect();
        let reader = Arc::new(table.reader());
        let (mut fingerprint, mut null_text) = (table.info.fingerprint.clone(), None);
        let repeated = |text: &RawTensor| tensor(text).repeat([recipe.model.segments() as i64, 1]);
        if let Some(path) = recipe.data.null_text() {
            let header = open_null_text(path, &recipe.model)?;
            let info = header.tensor(TEXT)?;
            let (shape, dtype) = (info.shape.clone(), info.dtype);
            let one = RawTensor { bytes: header.read_tensor(TEXT)?, shape, dtype, moments: false };
            null_text = Some(repeated(&one));
            fingerprint = format!("{fingerprint}-{}", rundir::file_sum(path)?.xxh3);
        } else if recipe.train.text_dropout > 0.0
            && let Some(slot) = table.empty_text()
        {
            null_text = Some(repeated(&reader.read(slot)?));
        }
        let (model, condition) = (recipe.model.clone(), recipe.condition.clone());
        Ok(Data {
            table,
            source: Source { reader, model, condition, null_text, readers: recipe.data.readers.max(1) },
            fingerprint,
            order,
            steps,
            global_batch: recipe.train.global_batch,
            work,
        })
    }

    /// Returns the number of items.
    pub fn len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Returns the fingerprint of the data sets; equal items give an equal fingerprint.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns a string that identifies the settings that decide the order of samples, except the seed and the global batch. It is
    /// empty for items of one shape that are used once per epoch.
    pub fn order_identity(&self) -> String {
        self.order.identity(self.global_batch).unwrap_or_default()
    }

    /// Returns the number of steps of the run.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the samples of the step that begins with sample `first`.
    pub fn step(&mut self, first: u64) -> StepPlan {
        self.order.step_of(first).clone()
    }

    /// Returns the work of a step, over all ranks.
    pub fn work(&self, step: &StepPlan) -> StepWork {
        step.micro_batches.iter().fold(StepWork::default(), |sum, micro_batch| {
            let (one, samples) = (self.work[micro_batch.bucket], micro_batch.len as f64);
            StepWork {
                tokens: sum.tokens + samples * one.tokens,
                forward_flops: sum.forward_flops + samples * one.forward_flops,
            }
        })
    }

    /// Returns the epoch of a sample and the number of samples before it in that epoch. With several shapes both are estimates, because
    /// each shape has its own epochs.
    pub fn position(&self, sample: u64) -> (u64, u64) {
        let n = self.order.samples_per_epoch();
        (sample / n, sample % n)
    }

    /// Returns the number of epochs in the first `samples` samples.
    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.order.samples_per_epoch() as f64
    }

    /// Returns the names of the clips that may be why a step with these samples is not finite: those whose stored tensors have values that
    /// are not finite, and true; or otherwise all clips of the samples, and false. Reads the samples.
    pub fn suspects(&mut self, numbers: Range<u64>) -> (Vec<String>, bool) {
        let items: Vec<usize> = numbers.clone().map(|number| self.order.sample(number).item).collect();
        let slots = self.samples(numbers);
        // A tensor that cannot be read again is no evidence.
        let is_bad = |slot: &Slot| self.source.reader.is_finite(*slot).is_ok_and(|is_finite| !is_finite);
        let bad: Vec<usize> = items
            .iter()
            .zip(&slots)
            .filter(|(_, slots)| slots.iter().flatten().any(is_bad))
            .map(|(item, _)| *item)
            .collect();
        match bad.is_empty() {
            true => (self.table.clip_names(&items), false),
            false => (self.table.clip_names(&bad), true),
        }
    }

    /// Returns a [`Reading`] of the samples with these numbers.
    pub fn reading(&mut self, numbers: Range<u64>) -> Reading {
        Reading { source: self.source.share(), samples: self.samples(numbers.clone()), numbers }
    }

    /// Returns the locations of the latents, texts and conditions of samples.
    fn samples(&mut self, numbers: Range<u64>) -> Vec<[Vec<Slot>; 3]> {
        numbers
            .map(|number| {
                let OrderedItem { item, pass } = self.order.sample(number);
                let (table, draws) = (&self.table, self.source.condition.draws().max(1));
                let extras = table.extras(item);
                let count = extras.len() / draws;
                let extras = &extras[(pass % draws as u64) as usize * count..][..count];
                [vec![table.latent(item)], table.texts(item).to_vec(), extras.to_vec()]
            })
            .collect()
    }
}

impl Source {
    /// Returns a source that shares the files and the tensors, which never change.
    fn share(&self) -> Self {
        Source {
            reader: Arc::clone(&self.reader),
            model: self.model.clone(),
            condition: self.condition.clone(),
            null_text: self.null_text.as_ref().map(Tensor::shallow_clone),
            readers: self.readers,
        }
    }
}

impl Reading {
    /// Reads the samples. `seed` is the key of the draws of latents whose file holds means and variances.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&self, seed: u64) -> Result<Batch, Failure> {
        let Source { reader, model, condition, readers, .. } = &self.source;
        let read = read_all(reader, &self.samples, *readers)?;
        let numbers = || self.numbers.clone().zip(&read);
        let latents: Vec<Tensor> = numbers()
            .map(|(number, read)| drawn(&read.latent, Purpose::Latent, seed, number) * model.latent_scale)
            .collect();
        let texts: Vec<Tensor> =
            read.iter().map(|read| Tensor::cat(&read.texts.iter().map(tensor).collect::<Vec<_>>(), 0)).collect();
        let conditions = conditions::of_batch(condition, model, |place| {
            let purpose = conditions::purpose(place);
            numbers().map(|(number, read)| drawn(&read.extras[place], purpose, seed, number)).collect()
        });
        Ok(Batch { latent: Tensor::stack(&latents, 0), text: Tensor::stack(&texts, 0), conditions })
    }

    /// Replaces the texts `[B, text_len, text_dim]` of samples that are not `kept`.
    pub fn drop_texts(&self, text: &Tensor, kept: &[bool]) -> Tensor {
        let kept = Tensor::from_slice(kept).view([-1, 1, 1]);
        let none = self.source.null_text.as_ref().map_or_else(|| Tensor::from(0f32), Tensor::shallow_clone);
        text.where_self(&kept, &none)
    }
}

/// Sends the table of rank 0 to all ranks. A collective.
fn share(world: &Group, table: Option<Table>) -> Result<Table, Failure> {
    if world.size() == 1 {
        return Ok(table.expect("the only rank opened the table"));
    }
    let bytes = table.as_ref().map_or_else(Vec::new, Table::to_bytes);
    let len = Tensor::from_slice(&[bytes.len() as i64]);
    world.broadcast(&len, 0).and_then(|pending| pending.wait()).map_err(failed)?;
    let len = len.int64_value(&[0]) as usize;
    let shared = match &table {
        Some(_) => Tensor::from_slice(&bytes),
        None => Tensor::zeros([len as i64], (Kind::Uint8, Device::Cpu)),
    };
    world.broadcast(&shared, 0).and_then(|pending| pending.wait()).map_err(failed)?;
    if let Some(table) = table {
        return Ok(table);
    }
    let mut bytes = vec![0; len];
    shared.copy_data_u8(&mut bytes, len);
    drop(shared);
    Table::from_bytes(&bytes).ok_or_else(|| {
        Failure::new(
            ErrorCode::Internal,
            "cannot read the table of the data set",
            "rank 0 sent a format that this rank cannot parse",
            "use the same vidtui-train on all nodes",
        )
    })
}

/// Reads samples with a number of threads. The order of the samples does not depend on it.
fn read_all(reader: &Reader, samples: &[[Vec<Slot>; 3]], readers: usize) -> Result<Vec<Read>, Failure> {
    if readers > 1 && samples.len() > 1 {
        return std::thread::scope(|scope| {
            let parts = samples.chunks(samples.len().div_ceil(readers));
            let threads: Vec<_> = parts.map(|part| scope.spawn(|| read_all(reader, part, 1))).collect();
            let mut read = Vec::with_capacity(samples.len());
            for thread in threads {
                read.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(read)
        });
    }
    let all = |slots: &[Slot]| slots.iter().map(|slot| reader.read(*slot)).collect::<Result<Vec<_>, _>>();
    let read = |[latent, texts, extras]: &[Vec<Slot>; 3]| {
        Ok(Read { latent: reader.read(latent[0])?, texts: all(texts)?, extras: all(extras)? })
    };
    samples.iter().map(read).collect()
}

/// Returns a stored latent of sample `number`. If it is stored as mean and log-variance, every use of the sample draws a
/// new latent.
///
/// Source: ttt-video-dit `preembedding_dataset.py` and `regularizers.py`.
fn drawn(stored: &RawTensor, purpose: Purpose, seed: u64, number: u64) -> Tensor {
    let latent = tensor(stored);
    if !stored.moments {
        return latent;
    }
    let [mean, log_variance] = latent.chunk(2, 1).try_into().expect("two halves");
    let noise = normal(seed, purpose, number, &mean.size(), Device::Cpu);
    mean + (log_variance.clamp(-30.0, 20.0) * 0.5).exp() * noise
}

/// Returns a tensor as fp32.
fn tensor(raw: &RawTensor) -> Tensor {
    let shape: Vec<i64> = raw.shape.iter().map(|d| *d as i64).collect();
    Tensor::from_data_size(&raw.bytes, &shape, kind(raw.dtype)).to_kind(Kind::Float)
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
pub(crate) mod tests {
    use super::*;
    use camino::{Utf8Path, Utf8PathBuf};
    use dataset::{LATENT, MOMENTS};
    use safetensors::tensor::TensorView;
    use std::thread;

    pub(crate) const ITEMS: u64 = 5;

    pub(crate) fn open(recipe: &recipe::Recipe) -> Result<Data, Failure> {
        Data::open(recipe, &Group::alone())
    }

    fn read(data: &mut Data, numbers: Range<u64>, seed: u64) -> Result<Batch, Failure> {
        data.reading(numbers).read(seed)
    }

    /// Five samples whose latent has one element: the item's number. With `log_variance`, the latents are moments.
    pub(crate) fn dataset(folder: &Utf8Path, log_variance: Option<f32>) -> recipe::Recipe {
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

    pub(crate) fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
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
        let mut zeros = open(&recipe).unwrap();
        let text = Tensor::ones([2, 16, 4], (Kind::Float, tch::Device::Cpu));
        let dropped = zeros.reading(0..2).drop_texts(&text, &[true, false]);
        assert_eq!((dropped.get(0), dropped.get(1)), (text.get(0), text.get(1).zeros_like()));

        // Any text of the right shape is accepted.
        recipe.data.null_text = folder.join("0.text");
        let mut null = open(&recipe).unwrap();
        assert_eq!(null.reading(0..2).drop_texts(&text, &[true, false]).get(1), text.get(1) * 0.5);
        assert_ne!(null.fingerprint(), zeros.fingerprint());

        recipe.data.null_text = folder.join("0");
        let failure = open(&recipe).unwrap_err();
        assert_eq!(failure.code, rundir::ErrorCode::TensorMismatch, "{failure}");
    }

    #[test]
    fn an_epoch_has_every_item_once_wherever_reading_begins() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, None);
        let in_place: Vec<i64> = (0..20)
            .map(|number| items(&read(&mut open(&recipe).unwrap(), number..number + 1, 1).unwrap())[0])
            .collect();
        for epoch in in_place.chunks(ITEMS as usize) {
            let mut seen = epoch.to_vec();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3, 4]);
        }
        // Two ranks with two samples per step each. The second one starts in the middle, like a resume.
        for (rank, from) in [(0, 0), (1, 4)] {
            let mut data = open(&recipe).unwrap();
            for first in (from..20).step_by(4) {
                let own = first + 2 * rank..first + 2 * rank + 2;
                let batch = read(&mut data, own.clone(), 1).unwrap();
                assert_eq!(items(&batch), in_place[own.start as usize..own.end as usize]);
            }
        }
    }

    #[test]
    fn several_readers_read_the_batch_of_one_reader() {
        let (_keep, folder) = temp();
        let mut recipe = dataset(&folder, None);
        let mut batch = |readers: usize| {
            recipe.data.readers = readers;
            read(&mut open(&recipe).unwrap(), 1..6, 7).unwrap()
        };
        let (one, several) = (batch(1), batch(3));
        assert_eq!((one.latent, one.text), (several.latent, several.text));
        assert!(batch(100).latent.size()[0] == 5, "more readers than samples");
    }

    #[test]
    fn a_missing_file_fails_only_the_batch_that_needs_it() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, None);
        let mut data = open(&recipe).unwrap();
        let item = data.order.sample(1).item;
        let gone = data.table.files_of(item)[0].to_owned();
        assert!(gone.starts_with(&folder));
        std::fs::remove_file(&gone).unwrap();
        assert!(read(&mut data, 0..1, 1).is_ok());
        let failure = read(&mut data, 1..2, 1).unwrap_err();
        assert!(failure.what.contains(gone.as_str()), "{failure}");
        assert!(read(&mut data, 2..3, 1).is_ok());
    }

    #[test]
    fn a_latent_is_drawn_from_its_mean_and_variance_by_the_number_of_the_sample() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, Some((0.25f32).ln()));
        let mut data = open(&recipe).unwrap();
        let mut draw = |number: u64, seed| read(&mut data, number..number + 1, seed).unwrap();
        let (first, again) = (draw(3, 1).latent, draw(3, 1).latent);
        assert_eq!(first.size(), [1, 3, 16, 8, 8]);
        assert_eq!(first, again);
        // The mean is a whole number. A single drawn value is too noisy to identify it.
        let item = first.mean(Kind::Float).double_value(&[]);
        assert!((item - item.round()).abs() < 0.05, "{item}");
        assert!((first.std(true).double_value(&[]) - 0.5).abs() < 0.02);
        assert_ne!(draw(3, 2).latent, first);
        let sure = dataset(&folder, Some(-100.0));
        assert_eq!(items(&read(&mut open(&sure).unwrap(), 3..4, 1).unwrap()), [item.round() as i64]);
    }

    /// Writes a store with the items of [`dataset`]. All values of its empty caption's embedding are 0.25.
    fn store(folder: &Utf8Path, mut recipe: recipe::Recipe, log_variance: f32) -> recipe::Recipe {
        use dataset::store::*;
        let spec = StoreSpec::new(
            FrameSpec { mode: "head".into(), count: 9, fps: None, stride: 1, seed: 0 },
            PictureSpec { width: 64, height: 64, crop: "center".into(), colour_rule: "1".into() },
            VaeSpec {
                name: "vae".into(),
                identity: "1".into(),
                channels: 16,
                scaling_factor: 0.0,
                dtype: "fp32".into(),
            },
            TextSpec {
                name: "t5".into(),
                tokenizer: "1".into(),
                encoder: "1".into(),
                len: 16,
                dim: 4,
                dtype: "fp32".into(),
            },
        );
        let clip = |item: u64| dataset::Clip {
            id: item.to_string(),
            path: format!("{item}.mp4").into(),
            content: item.to_string(),
            caption: "a rabbit".into(),
            ..dataset::Clip::default()
        };
        let manifest =
            dataset::ClipManifest { clips: (0..ITEMS).map(clip).collect(), ..dataset::ClipManifest::default() };
        let plan = plan_encode(folder, &manifest, &spec, Quarantined::Skip).unwrap();
        let holder = Holder { run: "test".into(), node: "here".into(), pid: 1 };
        let queue = Queue::create(folder, &plan, &holder, Timing { shard: 100_000, ..Timing::default() }).unwrap();
        for kind in [ItemKind::Text, ItemKind::Latent] {
            while let Claim::Range(mut range) = queue.claim(kind).unwrap() {
                for item in range.items().to_vec() {
                    let (shape, values) = match &item.work {
                        Work::Text { caption } => (vec![16, 4], vec![if caption.is_empty() { 0.25 } else { 0.5 }; 64]),
                        Work::Video { content, .. } => {
                            let mean = [content.parse::<f32>().unwrap(); 1024];
                            let frame = [&mean[..], &[log_variance; 1024][..]].concat();
                            (vec![3, 32, 8, 8], frame.repeat(3))
                        }
                    };
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    let tensor = NewTensor { role: "", dtype: Dtype::F32, shape: &shape, bytes: &bytes };
                    range.commit(&item, &[], &[tensor]).unwrap();
                }
                range.finish().unwrap();
            }
        }
        queue.finish(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        recipe.data.index = folder.to_owned();
        recipe
    }

    #[test]
    fn a_store_gives_the_batches_of_one_file_per_clip() {
        let (_keep, folder) = temp();
        let files = dataset(&folder, Some(-2.0));
        let recipe = store(&folder.join("store"), files.clone(), -2.0);
        let (mut one, mut other) = (open(&files).unwrap(), open(&recipe).unwrap());
        assert!(recipe.data.index.join("latents-00001.safetensors").exists());
        for first in 0..8 {
            let batch = |data: &mut Data| read(data, first..first + 2, 5).unwrap();
            let (one, other) = (batch(&mut one), batch(&mut other));
            assert_eq!((one.latent, one.text), (other.latent, other.text));
        }
    }

    #[test]
    fn all_ranks_have_the_table_of_rank_0_or_its_failure() {
        let (_keep, folder) = temp();
        let good = dataset(&folder, None);
        let mut missing = good.clone();
        missing.data.index = folder.join("none.jsonl");
        let (limit, path) = (std::time::Duration::from_secs(60), folder.join("rendezvous"));
        let opened = thread::scope(|scope| {
            let rank = |rank: usize| {
                let (path, good, missing) = (&path, &good, &missing);
                scope.spawn(move || {
                    let store = c10d::Store::file(path.as_std_path(), 2, limit).unwrap();
                    let world = Group::gloo(&store, rank, 2, limit, Some("lo")).unwrap();
                    let table = Data::open(good, &world).unwrap().table;
                    (table, Data::open(if rank == 0 { missing } else { good }, &world).unwrap_err())
                })
            };
            [rank(0), rank(1)].map(|rank| rank.join().unwrap())
        });
        assert_eq!(opened[0], opened[1]);
        assert_eq!((opened[0].0.len(), opened[0].1.code), (ITEMS as usize, ErrorCode::InvalidDataset));
    }

    #[test]
    fn each_epoch_trains_with_the_next_draw_of_the_conditions() {
        let (_keep, folder) = temp();
        let mut recipe = dataset(&folder, None);
        for item in 0..ITEMS {
            let bytes = |value: f32, count: usize| vec![value; count].iter().flat_map(|v| v.to_le_bytes()).collect();
            let parts: [(&str, usize, Vec<u8>); 3] =
                [(LATENT, 3, bytes(0.0, 3 * 1024)), ("image", 1, bytes(10.0, 1024)), ("image.1", 1, bytes(20.0, 1024))];
            let view = |(name, frames, bytes)| {
                (name, TensorView::new(safetensors::Dtype::F32, vec![frames, 16, 8, 8], bytes).unwrap())
            };
            let views = parts.iter().map(|(name, frames, bytes)| view((*name, *frames, bytes.as_slice())));
            std::fs::write(folder.join(format!("{item}")), safetensors::serialize(views, None).unwrap()).unwrap();
        }
        let kind = recipe::ConditionKind::Image;
        recipe.condition = Conditioning { kind, image_noise: true, draws: 2, ..Conditioning::default() };
        let mut data = open(&recipe).unwrap();
        let mut image = |number: u64| {
            let batch = read(&mut data, number..number + 1, 1).unwrap();
            (batch.conditions[0].1.mean(Kind::Float).double_value(&[]) / recipe.model.image_scale()).round()
        };
        let drawn: Vec<f64> = (0..3 * ITEMS).map(&mut image).collect();
        let epochs: Vec<&[f64]> = drawn.chunks(ITEMS as usize).collect();
        assert_eq!(epochs, [[10.0; 5], [20.0; 5], [10.0; 5]]);
    }

    #[test]
    fn a_recipe_that_drops_texts_uses_the_empty_caption_of_the_store() {
        let (_keep, folder) = temp();
        let mut recipe = store(&folder.join("store"), dataset(&folder, None), 0.0);
        let text = Tensor::ones([1, 16, 4], (Kind::Float, tch::Device::Cpu));
        let dropped = |recipe: &recipe::Recipe| open(recipe).unwrap().reading(0..1).drop_texts(&text, &[false]);
        recipe.train.text_dropout = 0.1;
        assert_eq!(dropped(&recipe), &text * 0.25);
        recipe.data.null_text = folder.join("0.text");
        assert_eq!(dropped(&recipe), &text * 0.5);
    }

    #[test]
    fn clips_with_nan_are_the_suspects_of_a_step_and_without_nan_all_its_clips_are() {
        let (_keep, folder) = temp();
        let recipe = dataset(&folder, None);
        let mut data = open(&recipe).unwrap();
        let (clips, in_data) = data.suspects(0..ITEMS);
        assert_eq!((clips.len() as u64, in_data), (ITEMS, false));
        let path = folder.join("2");
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(data.suspects(0..ITEMS), (vec![path.to_string()], true));
    }
}
