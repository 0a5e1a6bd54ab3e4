//! The order of samples: determines the items of every training step, the same after a resume. Needs no tensors.
//!
//! The items of one shape are a *bucket*. A bucket is an endless stream of samples: its items in random order for epoch 0, then in another
//! order for epoch 1, and so on. A step takes `train.grad_accum` micro-batches for each data-parallel rank. A micro-batch is successive
//! samples of one stream. An epoch has all steps that its samples can fill. Samples that are left over stay in their stream, in front of
//! those of the next epoch. So no sample is lost, and the position in the data is one integer: the number of samples before it.
//!
//! If all items have one shape, each epoch is one permutation of all items.

mod plan;
mod stream;
#[cfg(test)]
mod tests;

pub use plan::{MicroBatch, StepPlan};

use crate::Table;
use plan::Epoch;
use recipe::{DataSet, Flops, Length, Recipe, Shape, Shapes};
use rundir::{ErrorCode, Failure, xxh3_hex};
use std::collections::BTreeMap;
use stream::Stream;

/// The largest difference in cost between the micro-batches of a balanced step, as a share of the largest.
const TOLERANCE: f64 = 0.05;

/// The items of one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct ShapeBucket {
    /// The shape of their latents.
    pub shape: Shape,
    /// The cost of one sample, in any unit: only ratios of costs matter.
    pub cost: f64,
    /// The samples of a micro-batch: those that a rank processes at a time.
    pub batch: usize,
    /// The items of each data set.
    pub parts: Vec<SetItems>,
}

/// The items of one data set that have one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct SetItems {
    /// The items, as numbers in the table.
    pub items: Vec<u32>,
    /// How often each item is used in an epoch. If this is not an integer, some items are used once more than others in each epoch.
    pub uses: f64,
}

impl SetItems {
    /// Returns the number of samples in the first `epochs` epochs.
    fn samples(&self, epochs: u64) -> u64 {
        (self.uses * self.items.len() as f64 * epochs as f64).floor() as u64
    }
}

impl ShapeBucket {
    /// Returns the number of items.
    pub fn items(&self) -> usize {
        self.parts.iter().map(|part| part.items.len()).sum()
    }

    /// Returns the number of samples in the first `epochs` epochs.
    fn samples(&self, epochs: u64) -> u64 {
        self.parts.iter().map(|part| part.samples(epochs)).sum()
    }

    /// Returns the cost of a micro-batch.
    fn micro_batch_cost(&self) -> f64 {
        self.cost * self.batch as f64
    }
}

/// The order of the samples of a run.
#[derive(Debug)]
pub struct Order {
    buckets: Vec<ShapeBucket>,
    streams: Vec<Stream>,
    /// The number of micro-batches of a step: data-parallel ranks × `grad_accum`.
    micro_batches: usize,
    /// The largest difference in cost between the micro-batches of a step, as a share of the largest cost; `None` if they all have the same
    /// shape.
    tolerance: Option<f64>,
    seed: u64,
    /// The epoch and the step that were used last.
    epoch: Option<Epoch>,
    step: Option<StepPlan>,
}

/// An item in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedItem {
    /// The number of the item in the table.
    pub item: usize,
    /// How often the order used the item before.
    pub pass: u64,
}

/// The length of a run, and the items that it will not use.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The steps of the run.
    pub steps: u64,
    /// The number of complete epochs that the forecast computed: all epochs of the run, or fewer if every bucket is used earlier.
    pub epochs: u64,
    /// The numbers of the buckets whose items the run never uses. Empty if the run completes no epoch.
    pub unused: Vec<usize>,
    /// Describes the items in these buckets, for users; `None` if there are none.
    pub unused_in_words: Option<String>,
}

impl Order {
    /// Makes the order of `buckets`, sorted by shape, on `micro_batches` micro-batches per step.
    ///
    /// With a `tolerance`, the micro-batches of a step may have several shapes, and their costs differ by at most this share of the largest
    /// cost.
    ///
    /// # Panics
    /// `buckets` have no samples, or `micro_batches` is 0.
    pub fn new(buckets: Vec<ShapeBucket>, micro_batches: usize, tolerance: Option<f64>, seed: u64) -> Self {
        assert!(
            micro_batches > 0 && buckets.iter().any(|bucket| bucket.samples(u64::from(u32::MAX)) > 0),
            "there are no samples"
        );
        let streams = (0..buckets.len()).map(|number| Stream::new(seed ^ number as u64)).collect();
        Order { buckets, streams, micro_batches, tolerance, seed, epoch: None, step: None }
    }

    /// Makes the order of a recipe, on its mesh.
    ///
    /// # Errors
    /// The model cannot take a shape, or `data.image_share` needs items of which there are none.
    pub(crate) fn of(recipe: &Recipe, table: &Table) -> Result<Self, Failure> {
        let sizes: Vec<usize> = table.sets().iter().map(ExactSizeIterator::len).collect();
        let uses = uses(&recipe.data.all(), &sizes);
        let mut buckets = by_shape(table);
        for bucket in &mut buckets {
            bucket.parts.iter_mut().zip(&uses).for_each(|(part, uses)| part.uses = *uses);
        }
        Self::of_buckets(recipe, buckets)
    }

    /// Makes the order of a recipe for one data set, from the number of its items of each shape.
    ///
    /// # Errors
    /// The model cannot take a shape, or `data.image_share` needs items of which there are none.
    pub fn of_counts(recipe: &Recipe, counts: &BTreeMap<Shape, usize>) -> Result<Self, Failure> {
        let mut next = 0;
        let bucket = |(&shape, &count): (&Shape, &usize)| {
            let items = (next..next + number(count)).collect();
            next += number(count);
            ShapeBucket { shape, cost: 1.0, batch: 1, parts: vec![SetItems { items, uses: 1.0 }] }
        };
        Self::of_buckets(recipe, counts.iter().map(bucket).collect())
    }

    /// Makes the order after it has set the cost and micro-batch of each bucket and applied the share of images.
    fn of_buckets(recipe: &Recipe, mut buckets: Vec<ShapeBucket>) -> Result<Self, Failure> {
        for bucket in &mut buckets {
            let model = recipe.model_at(bucket.shape).map_err(|why| {
                let what = format!("the model cannot take latents of {}", bucket.shape);
                Failure::new(ErrorCode::InvalidDataset, what, why, "encode these clips at another size, or remove them")
            })?;
            bucket.cost = Flops::forward(&model).total();
            bucket.batch = recipe.micro_batch_at(bucket.shape);
        }
        if recipe.data.image_share > 0.0 {
            share_images(&mut buckets, recipe.data.image_share)?;
        }
        for bucket in &mut buckets {
            bucket.parts.retain(|part| !part.items.is_empty());
        }
        let micro_batches = recipe.mesh.data_ranks() * recipe.train.grad_accum;
        let tolerance = (recipe.shapes() == Shapes::Balanced).then_some(TOLERANCE);
        Ok(Self::new(buckets, micro_batches, tolerance, recipe.train.seed))
    }

    /// Makes the order of a recipe and checks what a run of its length will use.
    ///
    /// # Errors
    /// The model cannot take a shape; `data.image_share` is set and there are no images or no videos; more items than `data.max_unused`
    /// allows have a shape that never fills a step; or the run has no step.
    pub fn checked(recipe: &Recipe, table: &Table) -> Result<(Self, Forecast), Failure> {
        let order = Self::of(recipe, table)?;
        let mut forecast = order.forecast(recipe.train.length);
        forecast.unused_in_words = check_unused(recipe, &order, &forecast)?;
        Ok((order, forecast))
    }

    /// Makes an order in which a step is one sample and each item of a table is used once per epoch.
    pub fn single(recipe: &Recipe, table: &Table) -> Self {
        let mut buckets = by_shape(table);
        buckets.iter_mut().for_each(|bucket| bucket.parts.retain(|part| !part.items.is_empty()));
        Self::new(buckets, 1, None, recipe.train.seed)
    }

    /// Returns the buckets, sorted by shape.
    pub fn buckets(&self) -> &[ShapeBucket] {
        &self.buckets
    }

    /// Returns the mean number of samples in an epoch, rounded down.
    pub fn samples_per_epoch(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.samples(1)).sum::<u64>().max(1)
    }

    /// Returns a hash of everything that determines the order besides the items, the seed and the global batch. Returns `None` for the
    /// simplest order: all items have one shape, are used once per epoch, and a step takes `global_batch` of them.
    pub fn identity(&self, global_batch: usize) -> Option<String> {
        if let [ShapeBucket { parts, batch, .. }] = &self.buckets[..]
            && let [SetItems { uses: 1.0, .. }] = parts[..]
            && batch * self.micro_batches == global_batch
        {
            return None;
        }
        let mut text = String::new();
        for bucket in &self.buckets {
            let step = match self.tolerance {
                // On another mesh with as many samples in a step, each step has the same samples, so only their number counts.
                None => format!("{}", bucket.batch * self.micro_batches),
                Some(tolerance) => {
                    format!("{} {} {tolerance} {}", bucket.batch, self.micro_batches, bucket.micro_batch_cost())
                }
            };
            text += &format!("{} {step}", bucket.shape);
            bucket.parts.iter().for_each(|part| text += &format!(" {} {}", part.items.len(), part.uses));
            text.push('\n');
        }
        Some(xxh3_hex(text.as_bytes()))
    }

    /// Returns the step that contains a sample, given by its number from the start of the order.
    pub fn step_of(&mut self, sample: u64) -> &StepPlan {
        if !self.step.as_ref().is_some_and(|step| step.numbers().contains(&sample)) {
            let mut epoch =
                self.epoch.take().filter(|epoch| epoch.first <= sample).unwrap_or_else(|| Epoch::first(self));
            while epoch.end <= sample {
                epoch = epoch.next(self);
            }
            self.step = Some(epoch.step_of(sample, self));
            self.epoch = Some(epoch);
        }
        self.step.as_ref().expect("it was just set")
    }

    /// Returns the item of a sample, given by its number from the start of the order.
    pub fn sample(&mut self, number: u64) -> OrderedItem {
        let (bucket, index) = self.step_of(number).place(number);
        let (stream, of) = (&mut self.streams[bucket], &self.buckets[bucket]);
        stream.sample(of, index)
    }

    /// Returns the length of a run and the buckets that it will not use. Computes with numbers of items only, so it is fast for any length.
    pub fn forecast(&self, length: Length) -> Forecast {
        let mut taken = vec![0; self.buckets.len()];
        let mut forecast = Forecast { steps: 0, epochs: 0, unused: Vec::new(), unused_in_words: None };
        loop {
            let enough = match length {
                Length::Epochs(epochs) => forecast.epochs >= epochs,
                // Once every bucket is used, later epochs change nothing.
                Length::Steps(steps) => forecast.steps >= steps || taken.iter().all(|micro_batches| *micro_batches > 0),
            };
            if enough {
                break;
            }
            for window in self.windows(forecast.epochs, &taken) {
                forecast.steps += window.steps;
                window.takes.iter().for_each(|(bucket, micro_batches)| taken[*bucket] += micro_batches * window.steps);
            }
            if let Length::Steps(steps) = length
                && forecast.steps > steps
            {
                // The run ends within this epoch.
                break;
            }
            forecast.epochs += 1;
        }
        if let Length::Steps(steps) = length {
            forecast.steps = steps;
        }
        if forecast.epochs > 0 {
            forecast.unused = (0..taken.len()).filter(|bucket| taken[*bucket] == 0).collect();
        }
        forecast
    }
}

/// Describes the items that a run does not use; `None` if it uses all shapes.
///
/// # Errors
/// More items are unused than `data.max_unused` allows, or the run has no step.
fn check_unused(recipe: &Recipe, order: &Order, forecast: &Forecast) -> Result<Option<String>, Failure> {
    let buckets = order.buckets();
    let items = |numbers: &[usize]| numbers.iter().map(|number| buckets[*number].items()).sum::<usize>();
    let (all, unused) = (buckets.iter().map(ShapeBucket::items).sum::<usize>(), items(&forecast.unused));
    let is_empty = forecast.steps == 0;
    let most_unused = forecast.unused.iter().map(|number| &buckets[*number]).max_by_key(|bucket| bucket.items());
    let Some(most_unused) = most_unused else { return Ok(None) };
    let needs = match order.tolerance {
        None => {
            format!("a step takes {} of one shape", units::counted(most_unused.batch * order.micro_batches, "sample"))
        }
        Some(_) => format!(
            "a step takes {} of nearly the same cost, here of {} each",
            units::counted(order.micro_batches, "micro-batch"),
            units::counted(most_unused.batch, "sample")
        ),
    };
    let why = format!(
        "{} of {} in {} would not be used in {}: the shape {} has {}, and {needs}",
        units::grouped(unused as u64),
        units::counted(all, "item"),
        units::counted(forecast.unused.len(), "shape"),
        units::counted(forecast.epochs as usize, "epoch"),
        most_unused.shape,
        units::counted(most_unused.items(), "item"),
    );
    if !is_empty && unused as f64 <= recipe.data.max_unused * all as f64 {
        return Ok(Some(why));
    }
    let balance = if order.tolerance.is_none() && buckets.len() > 1 { "set data.shapes = \"balanced\", " } else { "" };
    let fix = format!(
        "{balance}lower train.global_batch or train.grad_accum, encode the clips to fewer shapes, train longer, or raise data.max_unused"
    );
    let what = if is_empty { "the run would have no step" } else { "too much of the data would not be used" };
    Err(Failure::new(ErrorCode::InvalidDataset, what, why, fix))
}

/// Groups the items of a table by shape, with a part for each data set. Each item is used once per epoch.
fn by_shape(table: &Table) -> Vec<ShapeBucket> {
    let mut buckets: BTreeMap<Shape, Vec<SetItems>> = BTreeMap::new();
    let sets = table.sets();
    for (set, items) in sets.iter().enumerate() {
        for item in items.clone() {
            let parts = buckets
                .entry(table.shape(item))
                .or_insert_with(|| vec![SetItems { items: Vec::new(), uses: 1.0 }; sets.len()]);
            parts[set].items.push(number(item));
        }
    }
    let bucket = |(shape, parts)| ShapeBucket { shape, cost: 1.0, batch: 1, parts };
    buckets.into_iter().map(bucket).collect()
}

/// Converts the number of an item, or a number of items.
fn number(items: usize) -> u32 {
    u32::try_from(items).expect("fewer than 4 billion items")
}

/// Returns for each data set how often its items are used in an epoch. With weights, this is 1 for the set with the most items per unit of
/// weight, and more for the others.
fn uses(sets: &[DataSet], sizes: &[usize]) -> Vec<f64> {
    // The number of items of a set per unit of its weight.
    let per_weight = |set: &DataSet, size: usize| set.weight.map(|weight| size as f64 / weight);
    let most = sets.iter().zip(sizes).filter_map(|(set, size)| per_weight(set, *size)).fold(0.0, f64::max);
    let of = |(set, size): (&DataSet, &usize)| match per_weight(set, *size) {
        Some(own) => most / own,
        None => set.repeats.unwrap_or(1) as f64,
    };
    sets.iter().zip(sizes).map(of).collect()
}

/// Raises the uses of images (items with one latent frame) or of videos, so that `share` of the samples are images.
fn share_images(buckets: &mut [ShapeBucket], share: f64) -> Result<(), Failure> {
    let samples = |images: bool| {
        let parts =
            buckets.iter().filter(|bucket| (bucket.shape.frames == 1) == images).flat_map(|bucket| &bucket.parts);
        parts.map(|part| part.uses * part.items.len() as f64).sum::<f64>()
    };
    let (images, videos) = (samples(true), samples(false));
    if images == 0.0 || videos == 0.0 {
        let (has, lacks) = if images == 0.0 { ("videos", "images") } else { ("images", "videos") };
        return Err(Failure::new(
            ErrorCode::InvalidDataset,
            format!("data.image_share {share} cannot be reached"),
            format!("the data sets have {has} only: images are items with one latent frame"),
            format!("add a data set of {lacks} to [[data.sets]], or remove data.image_share"),
        ));
    }
    let wanted = share * videos / (1.0 - share);
    for bucket in buckets {
        let factor = match bucket.shape.frames {
            1 => (wanted / images).max(1.0),
            _ => (images / wanted).max(1.0),
        };
        bucket.parts.iter_mut().for_each(|part| part.uses *= factor);
    }
    Ok(())
}
