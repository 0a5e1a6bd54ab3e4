//! Tests of saving and loading checkpoints.

use super::pieces::{Piece, average_pieces, moment_pieces, weight_pieces};
use super::save::{Copies, bytes, to_save};
use super::*;
use crate::memory::Memory;
use crate::parallelize::{layouts, unit_tables};
use c10d::Store;
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Recipe;
use rundir::{Checkpoint, RunDir, RunId, TrainState};
use sharding::flat::Layout;
use sharding::mesh::MeshGroups;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

/// Returns a recipe of 15 million parameters: a checkpoint of 190 MB, whose largest tensor is 5% of it.
fn recipe(dp_shard: usize) -> Recipe {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/minimal.toml");
    let shards = format!("mesh.dp_shard={dp_shard}");
    let sets = ["model.num_heads=8", "train.dtype=float32", &shards].map(String::from);
    recipe::load(file.into(), &sets).unwrap().recipe
}

/// The state of one rank, with every value initialized.
struct Rank {
    recipe: Recipe,
    tables: Vec<Vec<ParamSpec>>,
    fsdp: Fsdp,
    moments: OptimizerState,
    ema: Option<EmaWeights>,
    base: Option<BaseWeights>,
}

impl Rank {
    fn new(recipe: Recipe, groups: MeshGroups, value: f64) -> Self {
        let layouts = layouts(&recipe, &unit_tables(&recipe));
        Self::of(recipe, layouts, groups, value)
    }

    fn of(recipe: Recipe, layouts: Vec<Layout>, groups: MeshGroups, value: f64) -> Self {
        let tables = unit_tables(&recipe);
        let fsdp = Fsdp::new(layouts, groups, Kind::Float);
        let moments = OptimizerState::new(&fsdp, &tables, &recipe.optimizer).unwrap();
        let ema = EmaWeights::new(&fsdp, &recipe.ema).unwrap();
        let mut rank = Rank { recipe, tables, fsdp, moments, ema, base: None };
        // Codes of 8 bits and their scales stay zero.
        for mut piece in rank.pieces().into_iter().filter(|piece| piece.scales.is_none()) {
            drop(tch::no_grad(|| piece.values.fill_(value)));
        }
        rank
    }

    fn sharded(&mut self) -> TrainingState<'_> {
        TrainingState {
            fsdp: &self.fsdp,
            moments: &mut self.moments,
            ema: self.ema.as_ref(),
            tables: &self.tables,
            base: self.base.as_ref(),
        }
    }

    fn pieces(&mut self) -> Vec<Piece> {
        let sharded = self.sharded();
        let pieces = [weight_pieces(&sharded), moment_pieces(&sharded), average_pieces(&sharded)];
        pieces.into_iter().flatten().collect()
    }

    fn save(&mut self, run: &RunDir) {
        let mut spare = StagingMemory::default();
        let writing = self.begin_save(run, &mut spare);
        self.finish_save(writing, &mut spare);
    }

    fn begin_save(&mut self, run: &RunDir, spare: &mut StagingMemory) -> PendingSave {
        let state = TrainState {
            step: 1,
            samples_seen: 1,
            epoch: 0,
            position: 1,
            seed: 1,
            adam_step: 1,
            global_batch: 1,
            data_fingerprint: "x".into(),
            data_order: String::new(),
            bad_steps: 0,
            optimizer: self.moments.kind(),
            ..TrainState::default()
        };
        begin(&mut self.sharded(), run, state, spare).unwrap()
    }

    fn finish_save(&self, writing: PendingSave, spare: &mut StagingMemory) {
        let id = RunId::parse("2026-11-20T0340-load-test").unwrap();
        let saved = SaveInfo { id: &id, attempt: 1, mesh: self.recipe.mesh, saved_s: 0.0 };
        finish(&self.fsdp, writing, &saved, spare).unwrap();
    }
}

#[test]
fn the_first_save_copies_to_memory_allocated_before_it() {
    let mut rank = Rank::new(recipe(1), MeshGroups::alone(), 1.0);
    let sharded = rank.sharded();
    let places = |files: &mut dyn Iterator<Item = &Tensor>| files.map(|t| t.data_ptr() as usize).collect::<Vec<_>>();
    let mut spare = StagingMemory::allocate_ahead(&sharded);
    let made = places(&mut spare.get().unwrap().iter());
    let copies = Copies::of(to_save(&sharded), Device::Cpu, &mut spare, None).unwrap().wait().unwrap();
    assert!(made.len() > 3 * 40);
    let copied: Vec<&Piece> = copies.iter().flat_map(|(_, pieces)| pieces).collect();
    assert_eq!(places(&mut copied.iter().map(|piece| &piece.values)), made);
    // The places are parts of few chunks, and the copies have the values of the tensors that they copy.
    let originals = to_save(&sharded);
    let of: Vec<&Piece> = originals.iter().flat_map(|(_, pieces)| pieces).collect();
    assert!(copied.iter().zip(&of).all(|(copy, piece)| copy.values == piece.values));
    let bytes: Vec<u64> = of.iter().map(|piece| 4 * piece.values.numel() as u64).collect();
    let slab = recipe::Slab::of(&bytes);
    assert!(slab.chunks.len() < made.len() / 4, "{:?}", slab.chunks);
    // The next save uses the same memory.
    let mut spare =
        StagingMemory { ready: copied.iter().map(|piece| piece.values.shallow_clone()).collect(), allocating: None };
    let again = Copies::of(to_save(&sharded), Device::Cpu, &mut spare, None).unwrap().wait().unwrap();
    assert_eq!(places(&mut again.iter().flat_map(|(_, pieces)| pieces).map(|piece| &piece.values)), made);
}

#[test]
fn a_save_has_the_values_of_its_step_if_the_next_update_follows_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(Utf8Path::from_path(folder.path()).unwrap().join("run"));
    let mut rank = Rank::new(recipe(1), MeshGroups::alone(), 0.0);
    let numbers = |piece: &Piece| Vec::<f32>::try_from(&piece.values).unwrap();
    for mut piece in rank.pieces() {
        drop(tch::no_grad(|| piece.values.uniform_(0.0, 1.0)));
    }
    let before: Vec<Vec<f32>> = rank.pieces().iter().map(numbers).collect();
    // The writer gets its memory only after the update, unless the update waits for the copies.
    let (updated, update) = std::sync::mpsc::channel::<()>();
    let making = std::thread::spawn(move || {
        let _ = update.recv_timeout(Duration::from_secs(1));
        Ok(Vec::new())
    });
    let mut spare = StagingMemory { ready: Vec::new(), allocating: Some(making) };
    let writing = rank.begin_save(&run, &mut spare);
    for mut grad in rank.fsdp.shards().map(|shard| shard.grad.shallow_clone()) {
        drop(tch::no_grad(|| grad.fill_(1.0)));
    }
    let rates = crate::optim::LearningRates::at(&rank.recipe.optimizer, 0, 20);
    rank.moments.step(&rank.fsdp, &rank.recipe.optimizer, rates, 1.0).unwrap();
    drop(updated);
    assert!(rank.moments.take_stall_s() > 0.0);
    assert_eq!((rank.moments.take_stall_s(), rank.moments.take_stream_stall_s().unwrap()), (0.0, 0.0));
    assert!(rank.pieces().iter().map(numbers).ne(before.iter().cloned()), "the update changed nothing");
    rank.finish_save(writing, &mut spare);
    let found = load(&mut rank.sharded(), &run.step_dir(1), Restore::Everything).unwrap();
    assert!(matches!(found, Loaded::Intact(_)), "{found:?}");
    assert!(rank.pieces().iter().map(numbers).eq(before));
}

#[test]
fn an_adapter_checkpoint_holds_only_adapters_and_loads_its_base() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str| RunDir::new(Utf8Path::from_path(folder.path()).unwrap().join(name));
    let (whole, adapted) = (run("base"), run("adapted"));
    Rank::new(recipe(1), MeshGroups::alone(), 1.0).save(&whole);
    let mut recipe = recipe(1);
    recipe.train.trainable = recipe::Trainable::Lora;
    recipe.lora.rank = 4;
    let mut rank = Rank::new(recipe.clone(), MeshGroups::alone(), 2.0);
    rank.base = Some(BaseWeights::of(&Checkpoint::open(&whole.step_dir(1)).unwrap(), 1.0).unwrap());
    assert!(bytes(&rank.sharded()) < 2_000_000);
    rank.save(&adapted);

    let saved = Checkpoint::open(&adapted.step_dir(1)).unwrap();
    assert!(saved.manifest.tensors.iter().all(|tensor| tensor.name.contains(".lora_")));
    assert!(saved.bytes < 2_000_000, "{}", saved.bytes);
    let mut other = Rank::new(recipe, MeshGroups::alone(), 0.0);
    let found = load(&mut other.sharded(), &saved.dir, Restore::Everything).unwrap();
    assert!(matches!(found, Loaded::Intact(_)), "{found:?}");
    let mut kinds = [0, 0];
    for piece in other.pieces() {
        let wanted = if piece.adapter { 2.0 } else { 1.0 };
        assert!(Vec::<f32>::try_from(&piece.values).unwrap().iter().all(|value| *value == wanted), "{}", piece.name);
        kinds[usize::from(piece.adapter)] += 1;
    }
    assert!(kinds[0] > 40 && kinds[1] == 3 * 2 * 4 * 2, "{kinds:?}");

    // Flips a bit in the middle of the base's file. Its manifest and its size stay the same.
    let file = whole.step_dir(1).join("rank-00000.safetensors");
    let flip = || {
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    };
    flip();
    let damaged = load(&mut other.sharded(), &saved.dir, Restore::Everything).unwrap_err();
    assert_eq!(damaged.code, rundir::ErrorCode::CheckpointDamaged, "{damaged}");
    flip();
    std::fs::remove_file(whole.step_dir(1).join("damaged")).unwrap();
    assert!(matches!(load(&mut other.sharded(), &saved.dir, Restore::Everything), Ok(Loaded::Intact(_))));

    let manifest = whole.step_dir(1).join("manifest.toml");
    std::fs::rename(&manifest, manifest.with_extension("old")).unwrap();
    let gone = load(&mut other.sharded(), &saved.dir, Restore::Everything).unwrap_err();
    assert_eq!(gone.code, rundir::ErrorCode::TensorMismatch);
    Rank::new(self::recipe(1), MeshGroups::alone(), 3.0).save(&whole);
    let changed = load(&mut other.sharded(), &saved.dir, Restore::Everything).unwrap_err();
    assert_eq!(changed.code, rundir::ErrorCode::TensorMismatch);
}

/// Fills each piece with different numbers, and returns them by the name of the piece.
fn filled(rank: &mut Rank) -> BTreeMap<String, Vec<f32>> {
    let mut fill = |(i, mut piece): (usize, Piece)| {
        tch::no_grad(|| drop(piece.values.uniform_(i as f64, i as f64 + 1.0)));
        (piece.name, Vec::try_from(&piece.values).unwrap())
    };
    rank.pieces().into_iter().enumerate().map(&mut fill).collect()
}

/// The recipe with an average of the weights.
fn averaged() -> Recipe {
    let mut recipe = recipe(1);
    recipe.ema.decay = 0.9;
    recipe
}

#[test]
fn an_average_is_saved_with_the_weights_and_takes_their_place_in_sampling() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(Utf8Path::from_path(folder.path()).unwrap().join("run"));
    let mut rank = Rank::new(averaged(), MeshGroups::alone(), 0.0);
    let values = filled(&mut rank);
    rank.save(&run);
    let saved = Checkpoint::open(&run.step_dir(1)).unwrap();
    assert!(has_average(&saved));
    assert_eq!(saved.manifest.params, Rank::new(recipe(1), MeshGroups::alone(), 0.0).recipe.cost().params);
    let load = |recipe: Recipe, restore| {
        let mut rank = Rank::new(recipe, MeshGroups::alone(), -1.0);
        let found = load(&mut rank.sharded(), &saved.dir, restore).unwrap();
        assert!(matches!(found, Loaded::Intact(_)), "{found:?}");
        rank.pieces()
    };
    let everything = load(averaged(), Restore::Everything);
    assert_eq!(everything.len(), values.len());
    for piece in everything {
        assert_eq!(Vec::<f32>::try_from(&piece.values).unwrap(), values[&piece.name], "{}", piece.name);
    }
    for piece in load(recipe(1), Restore::Average).into_iter().filter(|piece| !piece.name.contains('/')) {
        let average = &values[&format!("ema/{}", piece.name)];
        assert_eq!(Vec::<f32>::try_from(&piece.values).unwrap(), *average, "{}", piece.name);
    }
    // A run without an average continues the weights.
    for piece in load(recipe(1), Restore::Everything) {
        assert_eq!(Vec::<f32>::try_from(&piece.values).unwrap(), values[&piece.name], "{}", piece.name);
    }
}

/// The recipe with another optimizer.
fn optimized(kind: recipe::OptimizerKind, dp_shard: usize) -> Recipe {
    let mut recipe = recipe(dp_shard);
    recipe.model.num_heads = 2;
    recipe.optimizer.kind = kind;
    recipe
}

/// Takes steps with gradients that depend only on the place of an element in its tensor and on the step.
fn trained_for(rank: &mut Rank, steps: u64) {
    for step in 0..steps {
        for owned in rank.fsdp.owned() {
            let numbers = Tensor::arange_start(
                owned.range.start,
                owned.range.start + owned.range.len,
                (Kind::Float, Device::Cpu),
            );
            let shard = rank.fsdp.shards().find(|shard| shard.unit == owned.unit).unwrap();
            let grad = (numbers * (1.0 + step as f64)).sin() * 1e-2;
            tch::no_grad(|| shard.grad.narrow(0, owned.range.shard_start, owned.range.len).copy_(&grad));
        }
        let rates = crate::optim::LearningRates::at(&rank.recipe.optimizer, step, 20);
        rank.moments.step(&rank.fsdp, &rank.recipe.optimizer, rates, 1.0).unwrap();
    }
}

/// Returns the values of all pieces, codes with their scales.
fn contents(rank: &mut Rank) -> BTreeMap<(String, i64), Vec<f64>> {
    let numbers = |tensor: &Tensor| Vec::<f64>::try_from(&tensor.to_kind(Kind::Double)).unwrap();
    let all = |piece: Piece| {
        let values = piece.tensors().flat_map(|(_, tensor)| numbers(tensor)).collect();
        ((piece.name, piece.start), values)
    };
    rank.pieces().into_iter().map(all).collect()
}

#[test]
fn the_state_of_every_optimizer_is_saved_without_loss_and_loads_on_another_mesh() {
    use recipe::OptimizerKind::{Adafactor, Adamw, Adamw8bit, Prodigy};
    for kind in [Adamw, Adamw8bit, Adafactor, Prodigy] {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap();
        let [first, second, third] = ["first", "second", "third"].map(|name| RunDir::new(path.join(name)));
        let new = |value| Rank::new(optimized(kind, 1), MeshGroups::alone(), value);
        let mut rank = new(0.01);
        trained_for(&mut rank, 3);
        let before = contents(&mut rank);
        rank.save(&first);
        let load = |rank: &mut Rank, from: &RunDir| {
            let found = load(&mut rank.sharded(), &from.step_dir(1), Restore::Everything).unwrap();
            assert!(matches!(found, Loaded::Intact(_)), "{kind:?}: {found:?}");
        };
        let mut again = new(0.0);
        load(&mut again, &first);
        assert!(contents(&mut again) == before, "{kind:?} on the same mesh");
        // Two shards load the checkpoint and save it again, and one rank loads the second checkpoint.
        on_two_ranks_of(&optimized(kind, 2), |_, mut rank| {
            load(&mut rank, &first);
            rank.save(&second);
        });
        let mut back = new(0.0);
        load(&mut back, &second);
        back.save(&third);
        let differ = |(name, values): &(&(String, i64), &Vec<f64>)| before[*name] != **values;
        let after = contents(&mut back);
        let other = after.iter().filter(differ).count();
        // A shard may end within a block of codes. A merged block gets the larger scale of its parts, so no value changes.
        assert_eq!(other, 0, "{kind:?} on another mesh");
    }
}

#[test]
fn the_state_of_another_optimizer_is_refused_and_its_weights_are_not() {
    use recipe::OptimizerKind::{Adafactor, Adamw, Adamw8bit, Prodigy};
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(Utf8Path::from_path(folder.path()).unwrap().join("run"));
    Rank::new(optimized(Adamw, 1), MeshGroups::alone(), 0.5).save(&run);
    for kind in [Adamw8bit, Adafactor, Prodigy] {
        let mut rank = Rank::new(optimized(kind, 1), MeshGroups::alone(), 0.0);
        let refused = load(&mut rank.sharded(), &run.step_dir(1), Restore::Everything).unwrap_err();
        assert_eq!(refused.code, rundir::ErrorCode::TensorMismatch);
        assert!(refused.why.contains("adamw,") && refused.why.contains(kind.name()), "{refused}");
        let found = load(&mut rank.sharded(), &run.step_dir(1), Restore::Weights).unwrap();
        assert!(matches!(found, Loaded::Intact(_)), "{found:?}");
    }
}

#[test]
fn an_average_of_another_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::new(Utf8Path::from_path(folder.path()).unwrap().join("run"));
    let mut rank = Rank::new(averaged(), MeshGroups::alone(), 0.0);
    let mut writing = rank.begin_save(&run, &mut StagingMemory::default());
    // Give one average another shape in the manifest: a single row.
    let (written, memory) = writing.thread.join().unwrap();
    let mut part = written.unwrap();
    let average = part.tensors.iter_mut().find(|tensor| tensor.name.starts_with("ema/") && tensor.shape.len() == 2);
    let average = average.unwrap();
    average.shape = vec![1, average.shape.iter().product()];
    writing.thread = std::thread::spawn(move || (Ok(part), memory));
    rank.finish_save(writing, &mut StagingMemory::default());
    let refused = load(&mut rank.sharded(), &run.step_dir(1), Restore::Everything).unwrap_err();
    assert_eq!(refused.code, rundir::ErrorCode::TensorMismatch);
    assert!(refused.why.contains("ema/"), "{refused}");
    let found = load(&mut rank.sharded(), &run.step_dir(1), Restore::Weights).unwrap();
    assert!(matches!(found, Loaded::Intact(_)), "{found:?}");
}

/// Returns layouts of two shards without gaps between tensors, whose shards end after an odd number of elements.
fn packed(recipe: &Recipe) -> Vec<Layout> {
    let mut layouts = layouts(recipe, &unit_tables(recipe));
    for layout in &mut layouts {
        let mut end = 0;
        for slot in &mut layout.slots {
            slot.offset = end;
            end += slot.len;
        }
        layout.trained_shard = ((end + 1) / 2) | 1;
    }
    layouts
}

#[test]
fn a_checkpoint_whose_slices_end_at_odd_elements_loads_into_aligned_shards() {
    use recipe::OptimizerKind::{Adamw, Adamw8bit};
    for kind in [Adamw, Adamw8bit] {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap();
        let [aligned, odd, again] = ["aligned", "odd", "again"].map(|name| RunDir::new(path.join(name)));
        let load = |rank: &mut Rank, from: &RunDir| {
            let found = load(&mut rank.sharded(), &from.step_dir(1), Restore::Everything).unwrap();
            assert!(matches!(found, Loaded::Intact(_)), "{kind:?}: {found:?}");
        };
        let one = || Rank::new(optimized(kind, 1), MeshGroups::alone(), 0.01);
        let mut rank = one();
        trained_for(&mut rank, 3);
        let before = contents(&mut rank);
        rank.save(&aligned);
        let recipe = optimized(kind, 2);
        on_two_groups(&recipe, |groups| {
            let mut rank = Rank::of(recipe.clone(), packed(&recipe), groups, 0.0);
            load(&mut rank, &aligned);
            rank.save(&odd);
        });
        let saved = Checkpoint::open(&odd.step_dir(1)).unwrap();
        let slices = saved.manifest.tensors.iter().flat_map(|tensor| &tensor.slices);
        assert!(slices.filter(|slice| slice.start % 2 == 1).count() >= 3 * 3, "every unit is cut at an odd element");
        on_two_ranks_of(&recipe, |_, mut rank| {
            load(&mut rank, &odd);
            rank.save(&again);
        });
        for run in [&odd, &again] {
            let mut rank = one();
            load(&mut rank, run);
            assert!(contents(&mut rank) == before, "{kind:?}: {}", run.root);
        }
    }
}

/// Runs two ranks as threads and returns their results.
fn on_two_ranks<T: Send>(go: impl Fn(usize, Rank) -> T + Sync) -> Vec<T> {
    on_two_ranks_of(&recipe(2), go)
}

/// As [`on_two_ranks`], with another recipe.
fn on_two_ranks_of<T: Send>(recipe: &Recipe, go: impl Fn(usize, Rank) -> T + Sync) -> Vec<T> {
    on_two_groups(recipe, |groups| go(groups.world.rank(), Rank::new(recipe.clone(), groups, 1.5)))
}

/// As [`on_two_ranks_of`], but `go` creates the state of its rank.
fn on_two_groups<T: Send>(recipe: &Recipe, go: impl Fn(MeshGroups) -> T + Sync) -> Vec<T> {
    let limit = Duration::from_secs(120);
    // Not in the folder: FileStore sometimes leaves its file behind, and the next ranks would read the addresses in it.
    let store = tempfile::tempdir().unwrap();
    let rank = |rank: usize| {
        let store = Store::file(&store.path().join("store"), 2, limit).unwrap();
        go(MeshGroups::join(&store, recipe.mesh, rank, Device::Cpu, limit, Some("lo")).unwrap())
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        [0, 1].map(|number| scope.spawn(move || rank(number))).map(|thread| thread.join().unwrap()).into()
    })
}

#[test]
fn a_checkpoint_that_only_rank_1_cannot_open_is_not_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap();
    let run = RunDir::new(path.join("run"));
    // Loads on both ranks. Each rank gets its own path, as if nodes saw different states of a shared disk.
    let loaded = |dirs: [&Utf8Path; 2]| {
        on_two_ranks(|rank, mut state| load(&mut state.sharded(), dirs[rank], Restore::Everything))
    };
    on_two_ranks(|_, mut rank| rank.save(&run));
    let (whole, unseen) = (run.step_dir(1), run.step_dir(2));
    for failure in loaded([&whole, &unseen]).into_iter().map(Result::unwrap_err) {
        assert_eq!(failure.code, rundir::ErrorCode::CheckpointUnreadable, "{failure}");
        assert!(failure.what.contains(unseen.as_str()) && failure.why.contains("manifest.toml"), "{failure}");
    }
    for found in loaded([&unseen, &whole]) {
        assert!(matches!(found, Ok(Loaded::Damaged(_))), "{found:?}");
    }
}

/// The environment variable that passes the run's folder to the child process that loads.
const CHILD: &str = "VIDTUI_LOAD_TEST_CHILD";

/// Loads in a child process, so that the measured memory is that of the load alone.
#[test]
fn loading_a_checkpoint_of_another_mesh_needs_memory_for_few_tensors() {
    const THIS: &str = "checkpoint::tests::loading_a_checkpoint_of_another_mesh_needs_memory_for_few_tensors";
    if let Some(run) = std::env::var_os(CHILD) {
        let run = RunDir::new(Utf8PathBuf::from_path_buf(run.into()).unwrap());
        return load_and_print_growth(&run);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    let run = RunDir::new(path.join("run"));
    on_two_ranks(|_, mut rank| rank.save(&run));
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", "--nocapture", THIS]).env(CHILD, &run.root).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let grown = printed.lines().find_map(|line| line.split_once("grown by ")).expect("the child prints its growth").1;
    let grown: f64 = grown.trim().parse().unwrap();

    let tensors = &Checkpoint::open(&run.step_dir(1)).unwrap().manifest.tensors;
    let bytes = || tensors.iter().map(|tensor| 4.0 * tensor.elements().unwrap() as f64);
    let (all, largest) = (bytes().sum::<f64>(), bytes().fold(0.0, f64::max));
    // The allowance for memory that does not grow with the model: buffers, headers, threads and their stacks.
    const REST: f64 = 16e6;
    let most = 3.0 * largest + REST;
    assert!(all > 150e6 && most < all / 3.0, "a checkpoint of {all} bytes, the largest tensor has {largest}");
    assert!(grown < most, "loading {all} bytes took {grown}, the largest tensor has {largest}");
}

/// Loads on one rank, and prints the peak growth of the process in bytes.
fn load_and_print_growth(run: &RunDir) {
    let mut rank = Rank::new(recipe(1), MeshGroups::alone(), 0.0);
    // Resets the peak memory of the process. Without permission, the earlier peak is only slightly higher.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = Memory::of(Device::Cpu).now_gib;
    let loaded = load(&mut rank.sharded(), &run.step_dir(1), Restore::Everything).unwrap();
    let grown = Memory::of(Device::Cpu).peak_gib - before;
    assert!(matches!(loaded, Loaded::Intact(_)), "{loaded:?}");
    assert!(
        rank.pieces()
            .iter()
            .all(|piece| piece.values.min() == piece.values.max() && piece.values.double_value(&[0]) == 1.5)
    );
    println!("grown by {}", grown * f64::from(1 << 30));
}
