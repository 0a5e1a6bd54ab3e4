//! Tests of the order of samples: buckets, epochs, shares and what stays unused.

use super::*;
use crate::seeds::{Purpose, permutation};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn bucket(number: usize, items: std::ops::Range<u32>, cost: f64, batch: usize, uses: f64) -> ShapeBucket {
    let shape = Shape { frames: 1 + number, height: 8, width: 8 };
    ShapeBucket { shape, cost, batch, parts: vec![SetItems { items: items.collect(), uses }] }
}

/// Buckets with these items, costs and batches; each item has a number of its own.
fn buckets(sizes: &[(u32, f64, usize)]) -> Vec<ShapeBucket> {
    let mut next = 0;
    let of = |(number, &(items, cost, batch)): (usize, &(u32, f64, usize))| {
        next += items;
        bucket(number, next - items..next, cost, batch, 1.0)
    };
    sizes.iter().enumerate().map(of).collect()
}

/// The first steps, each with the items of its micro-batches.
fn steps(order: &mut Order, count: usize) -> Vec<(StepPlan, Vec<Vec<OrderedItem>>)> {
    let mut first = 0;
    let mut next = |_| {
        let step = order.step_of(first).clone();
        let micro_batches = (0..step.micro_batches.len()).map(|micro_batch| {
            let places = step.places(micro_batch);
            (places.start + first..places.end + first).map(|number| order.sample(number)).collect()
        });
        let micro_batches = micro_batches.collect();
        first += step.samples();
        (step, micro_batches)
    };
    (0..count).map(&mut next).collect()
}

/// Items, cost and batch of each bucket; micro-batches of a step; tolerance; seed.
type Case = (Vec<(u32, f64, usize)>, usize, Option<f64>, u64);

fn sizes() -> impl Strategy<Value = Vec<(u32, f64, usize)>> {
    prop::collection::vec((1..40u32, 1.0..4.0f64, 1..4usize), 1..7)
}

fn orders() -> impl Strategy<Value = Case> {
    (sizes(), 1..5usize, prop_oneof![Just(None), Just(Some(0.05)), Just(Some(0.3))], any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_item_is_used_once_per_epoch_or_carried((sizes, micro_batches, tolerance, seed) in orders()) {
        let mut order = Order::new(buckets(&sizes), micro_batches, tolerance, seed);
        let epochs = 5;
        let count = order.forecast(Length::Epochs(epochs)).steps as usize;
        let mut used: BTreeMap<usize, u64> = BTreeMap::new();
        for sample in steps(&mut order, count).into_iter().flat_map(|step| step.1).flatten() {
            let uses = used.entry(sample.item).or_default();
            // The passes of an item come in order.
            prop_assert_eq!(*uses, sample.pass);
            *uses += 1;
        }
        let mut carried = 0;
        for bucket in order.buckets() {
            let of = |item: &u32| used.get(&(*item as usize)).copied().unwrap_or(0);
            let uses: Vec<u64> = bucket.parts[0].items.iter().map(of).collect();
            let (least, most) = (uses.iter().min().unwrap(), uses.iter().max().unwrap());
            // An item is used again only after all others of its shape.
            prop_assert!(most - least <= 1 && *most <= epochs);
            let left = epochs * uses.len() as u64 - uses.iter().sum::<u64>();
            // If steps have one shape, fewer samples than a step are left over.
            prop_assert!(tolerance.is_some() || left < (bucket.batch * micro_batches) as u64);
            carried += left;
        }
        prop_assert_eq!(carried + used.values().sum::<u64>(), epochs * order.samples_per_epoch());
    }

    #[test]
    fn all_micro_batches_of_a_step_have_one_shape_or_nearly_one_cost((sizes, micro_batches, tolerance, seed) in orders()) {
        let mut order = Order::new(buckets(&sizes), micro_batches, tolerance, seed);
        let count = order.forecast(Length::Epochs(4)).steps as usize;
        for (step, _) in steps(&mut order, count) {
            prop_assert_eq!(step.micro_batches.len(), micro_batches);
            let first = step.micro_batches[0];
            match tolerance {
                None => prop_assert!(step.micro_batches.iter().all(|micro_batch| (micro_batch.bucket, micro_batch.len) == (first.bucket, first.len))),
                Some(tolerance) => {
                    let costs = step.micro_batches.iter().map(|micro_batch| order.buckets()[micro_batch.bucket].cost * micro_batch.len as f64);
                    let (least, most) = costs.fold((f64::MAX, 0.0f64), |(least, most), cost| (least.min(cost), most.max(cost)));
                    prop_assert!(least >= (1.0 - tolerance) * most, "{least} {most}");
                }
            }
        }
    }

    #[test]
    fn a_resume_at_any_step_reads_the_same_rest((sizes, micro_batches, tolerance, seed) in orders(), at in 0..30usize) {
        let new = || Order::new(buckets(&sizes), micro_batches, tolerance, seed);
        let all = steps(&mut new(), 40);
        let mut resumed = new();
        let first = all[at].0.first;
        prop_assert_eq!(resumed.step_of(first), &all[at].0);
        for number in first..all[39].0.first {
            let (step, items) = all.iter().rfind(|(step, _)| step.first <= number).unwrap();
            let flat: Vec<OrderedItem> = items.iter().flatten().copied().collect();
            prop_assert_eq!(resumed.sample(number), flat[(number - step.first) as usize]);
        }
    }

    #[test]
    fn steps_of_one_shape_have_the_same_samples_on_another_mesh(items in prop::collection::vec(1..40u32, 1..5), seed: u64) {
        let on = |micro_batches: usize| {
            let sizes: Vec<_> = items.iter().map(|items| (*items, 1.0, 12 / micro_batches)).collect();
            let mut order = Order::new(buckets(&sizes), micro_batches, None, seed);
            let identity = order.identity(12);
            let steps = steps(&mut order, 20).into_iter().map(|step| step.1.concat()).collect::<Vec<_>>();
            (steps, identity)
        };
        prop_assert_eq!(on(2), on(6));
        prop_assert_eq!(on(3), on(12));
    }

    #[test]
    fn items_of_one_shape_come_in_one_permutation_per_epoch(items in 1..60u32, batch in 1..5usize, micro_batches in 1..5usize, seed: u64) {
        for tolerance in [None, Some(TOLERANCE)] {
            let mut order = Order::new(buckets(&[(items, 2.0, batch)]), micro_batches, tolerance, seed);
            prop_assert_eq!(order.identity(batch * micro_batches), None);
            prop_assert!(order.identity(batch * micro_batches + 1).is_some());
            let n = u64::from(items);
            for number in 0..4 * n {
                let wanted = permutation(seed, Purpose::Order, number / n, items as usize)[(number % n) as usize];
                prop_assert_eq!(order.sample(number), OrderedItem { item: wanted, pass: number / n });
                let global = (batch * micro_batches) as u64;
                prop_assert_eq!(order.step_of(number), &StepPlan::even(number / global * global, batch * micro_batches, micro_batches));
            }
        }
    }

    #[test]
    fn a_part_that_is_used_more_often_has_its_share_of_every_epoch(uses in 1.0..4.0f64, items in 1..30u32, seed: u64) {
        let parts = vec![SetItems { items: (0..items).collect(), uses }, SetItems { items: (100..120).collect(), uses: 1.0 }];
        let shape = Shape { frames: 3, height: 8, width: 8 };
        let mut order = Order::new(vec![ShapeBucket { shape, cost: 1.0, batch: 1, parts }], 1, None, seed);
        let epochs = 6u64;
        let samples = order.forecast(Length::Epochs(epochs)).steps;
        let mut used = BTreeMap::<usize, u64>::new();
        for number in 0..samples {
            let sample = order.sample(number);
            *used.entry(sample.item).or_default() += 1;
        }
        let of_first: Vec<u64> = (0..items as usize).map(|item| used.get(&item).copied().unwrap_or(0)).collect();
        let wanted = (uses * f64::from(items) * epochs as f64).floor() as u64;
        prop_assert_eq!(of_first.iter().sum::<u64>(), wanted);
        prop_assert!(of_first.iter().max().unwrap() - of_first.iter().min().unwrap() <= 1);
        prop_assert!((100..120).all(|item| used[&item] == epochs));
    }
}

#[test]
fn an_epoch_changes_shapes_from_step_to_step_and_differs_from_the_next() {
    let mut order = Order::new(buckets(&[(40, 1.0, 2), (40, 2.0, 2), (40, 3.0, 2)]), 2, None, 7);
    let shapes: Vec<usize> = steps(&mut order, 60).iter().map(|step| step.0.micro_batches[0].bucket).collect();
    let changes = shapes[..30].windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > 10, "{shapes:?}");
    assert_ne!(shapes[..30], shapes[30..]);
}

#[test]
fn weights_are_shares_of_the_samples_and_no_set_loses_items() {
    let set = |weight, repeats| DataSet { index: "x".into(), weight, repeats };
    // The first set has the most items per unit of weight (100), so its items are used once.
    assert_eq!(uses(&[set(Some(1.0), None), set(Some(3.0), None)], &[100, 100]), [1.0, 3.0]);
    assert_eq!(uses(&[set(Some(0.2), None), set(Some(0.8), None)], &[1000, 10]), [1.0, 400.0]);
    assert_eq!(uses(&[set(None, Some(3)), set(None, None)], &[5, 7]), [3.0, 1.0]);
}

#[test]
fn images_get_their_share_by_repeats_of_images_or_of_videos() {
    let of = |images: u32, videos: u32, share: f64| {
        let mut mixed = buckets(&[(images, 1.0, 1), (videos, 1.0, 1)]);
        share_images(&mut mixed, share).map(|()| mixed.iter().map(|bucket| bucket.parts[0].uses).collect::<Vec<_>>())
    };
    assert_eq!(of(10, 30, 0.5).unwrap(), [3.0, 1.0]);
    assert_eq!(of(30, 10, 0.5).unwrap(), [1.0, 3.0]);
    assert_eq!(of(0, 10, 0.5).unwrap_err().code, ErrorCode::InvalidDataset);
    assert_eq!(of(10, 0, 0.5).unwrap_err().code, ErrorCode::InvalidDataset);
}

#[test]
fn a_shape_that_cannot_fill_a_step_is_found_before_the_start() {
    let sizes = [(100, 1.0, 4), (3, 1.5, 4)];
    let order = |tolerance| Order::new(buckets(&sizes), 4, tolerance, 1);
    let forecast = order(None).forecast(Length::Epochs(3));
    assert_eq!((forecast.steps, forecast.unused.clone()), (300 / 16, vec![1]));
    // Six epochs have 18 of its samples.
    assert_eq!(order(None).forecast(Length::Epochs(6)).unused, Vec::<usize>::new());
    // A run that completes no epoch reports no unused items.
    assert_eq!(order(None).forecast(Length::Steps(2)).unused, Vec::<usize>::new());
    assert_eq!(order(None).forecast(Length::Steps(18)).unused, [1]);
    // With costs within a third, both shapes share steps.
    assert_eq!(order(Some(0.34)).forecast(Length::Epochs(3)).unused, Vec::<usize>::new());
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    let recipe = |max: &str| recipe::load(minimal.into(), &[format!("data.max_unused={max}")]).unwrap().recipe;
    assert!(check_unused(&recipe("0.05"), &order(None), &forecast).unwrap().is_some());
    let failure = check_unused(&recipe("0.01"), &order(None), &forecast).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
    let none = Order::new(buckets(&[(3, 1.0, 4)]), 4, None, 1);
    let empty = check_unused(&recipe("0.9"), &none, &none.forecast(Length::Epochs(2))).unwrap_err();
    insta::assert_snapshot!(format!("{failure}\n\n{empty}"));
}

#[test]
fn a_forecast_of_many_steps_takes_no_time() {
    let order = Order::new(buckets(&[(24, 1.0, 2), (5, 1.5, 2)]), 2, Some(TOLERANCE), 7);
    assert_eq!(order.forecast(Length::Steps(10_000_000_000)).unused, Vec::<usize>::new());
    assert_eq!(order.forecast(Length::Epochs(100_000)).steps, 100_000 * 29 / 4);
}

/// The batches of Open-Sora's sampler on 500 videos, recorded from its own code.
const OPEN_SORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/open_sora/batches.json");

/// The figures that `cargo xtask bench buckets` shows.
#[derive(serde::Serialize)]
struct Waste {
    sampler: &'static str,
    /// The share of the ranks' time that they wait for the slowest of their step, in percent.
    waiting: f64,
    /// The share of tokens that only fill patches, in percent.
    padding: f64,
    /// The share of the clips that no step of an epoch uses, on average, in percent.
    unused: f64,
    steps: usize,
}

/// Returns the share of time in percent that ranks wait, from the costs of the ranks in each step.
fn waiting(steps: &[Vec<f64>]) -> f64 {
    let most = |step: &Vec<f64>| step.iter().copied().fold(0.0, f64::max) * step.len() as f64;
    let (busy, all): (f64, f64) = (steps.iter().flatten().sum(), steps.iter().map(most).sum());
    100.0 * (1.0 - busy / all)
}

#[test]
fn on_64_ranks_padding_and_waiting_stay_below_5_percent() {
    const RANKS: usize = 64;
    const EPOCHS: u64 = 200;
    #[derive(serde::Deserialize)]
    struct Recorded {
        videos: usize,
        buckets: Vec<[usize; 5]>,
        epochs: Vec<Vec<[usize; 4]>>,
    }
    let recorded: Recorded = serde_json::from_str(&std::fs::read_to_string(OPEN_SORA).unwrap()).unwrap();
    assert_eq!((recorded.videos, recorded.buckets.len()), (500, 73));
    let minimal = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    // CogVideoX-5B.
    let sets = ["num_layers=42", "num_heads=48", "text_len=226"].map(|set| format!("model.{set}"));
    let recipe = recipe::load(minimal.into(), &sets).unwrap().recipe;
    let latent = |frames: usize, height: usize, width: usize| Shape {
        frames: (frames - 1) / 4 + 1,
        height: height / 8,
        width: width / 8,
    };
    let cost = |shape: Shape| Flops::forward(&recipe.at(shape).model).total();
    // The share of the values in patches that are padding.
    let padding = |clips: &mut dyn Iterator<Item = (Shape, usize)>| {
        let (mut own, mut all) = (0, 0);
        for (shape, clips) in clips {
            let model = recipe.at(shape).model;
            own += clips * shape.frames * shape.height * shape.width;
            all += clips * model.video_tokens() * model.patch_size * model.patch_size * model.patch_size_t;
        }
        100.0 * (1.0 - own as f64 / all as f64)
    };
    let mut results = Vec::new();

    // Step i gives rank r batch i × ranks + r, and batches that do not fill a step are dropped.
    let steps: Vec<Vec<[usize; 4]>> =
        recorded.epochs.iter().flat_map(|epoch| epoch.chunks_exact(RANKS).map(<[_]>::to_vec)).collect();
    let costs: Vec<Vec<f64>> = steps
        .iter()
        .map(|step| step.iter().map(|[f, h, w, clips]| cost(latent(*f, *h, *w)) * *clips as f64).collect())
        .collect();
    let used: usize = steps.iter().flatten().map(|batch| batch[3]).sum();
    let assigned: usize = recorded.buckets.iter().map(|bucket| bucket[3]).sum();
    results.push(Waste {
        sampler: "open_sora",
        waiting: waiting(&costs),
        padding: padding(&mut steps.iter().flatten().map(|[f, h, w, clips]| (latent(*f, *h, *w), *clips))),
        unused: 100.0 * (1.0 - used as f64 / (assigned * recorded.epochs.len()) as f64),
        steps: steps.len(),
    });

    for (sampler, tolerance) in [("grouped", None), ("balanced", Some(TOLERANCE))] {
        let mut next = 0;
        let buckets = recorded.buckets.iter().map(|&[frames, height, width, clips, batch]| {
            let shape = latent(frames, height, width);
            let items = (next..next + clips as u32).collect();
            next += clips as u32;
            ShapeBucket { shape, cost: cost(shape), batch, parts: vec![SetItems { items, uses: 1.0 }] }
        });
        let mut order = Order::new(buckets.collect(), RANKS, tolerance, 42);
        let forecast = order.forecast(Length::Epochs(EPOCHS));
        let (mut first, mut costs, mut clips) = (0, Vec::new(), Vec::new());
        for _ in 0..forecast.steps {
            let step = order.step_of(first).clone();
            first += step.samples();
            let of = |micro_batch: &MicroBatch| order.buckets()[micro_batch.bucket].cost * micro_batch.len as f64;
            costs.push(step.micro_batches.iter().map(of).collect());
            clips.extend(
                step.micro_batches
                    .iter()
                    .map(|micro_batch| (order.buckets()[micro_batch.bucket].shape, micro_batch.len)),
            );
        }
        let all = (EPOCHS * order.samples_per_epoch()) as f64;
        results.push(Waste {
            sampler,
            waiting: waiting(&costs),
            padding: padding(&mut clips.into_iter()),
            unused: 100.0 * (1.0 - first as f64 / all),
            steps: costs.len(),
        });
    }
    for result in &results {
        println!("{}", serde_json::to_string(result).unwrap());
    }
    assert!(results[0].waiting > 50.0, "Open-Sora's ranks wait for the slowest shape");
    assert!(results[1..].iter().all(|ours| ours.waiting + ours.padding <= 5.0));
    assert_eq!(results[1].waiting.round(), 0.0);
}
