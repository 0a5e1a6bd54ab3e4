//! Fixtures for the conversion tests: a small model, a run of two ranks, and readers of the output.

use super::*;
use crate::fixtures::copy_folder;
use crate::tensor_spans::{Files, StoredTensor, Tensors};
use recipe::Recipe;
use rundir::{Run, RunDir, StartFrom, TensorBox};
use safetensors::Dtype as Theirs;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::fs;

mod bad_sources;
mod changes;
mod links;
mod not_finite;
mod of_runs;
mod other_forms;
mod pipeline;
mod places;
mod round_trip;
mod wan;

const NOW_S: f64 = 1_763_600_000.0;

/// Returns a small model with rotary positions from the fixtures.
fn small() -> Utf8PathBuf {
    "../../tests/fixtures/oracle/cogvideox/cogvideox_5b_tiny/transformer".into()
}

fn go(request: &ConvertRequest) -> Result<Converted, Failure> {
    plan_conversion(request)?.execute(request.force, NOW_S, 7, &mut |_| ControlFlow::Continue(()))
}

fn bytes(tensors: &Tensors) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let mut files = Files::default();
    let read = |t: &StoredTensor, files: &mut Files| (t.dtype, t.shape.clone(), files.read_all(t).unwrap());
    tensors.iter().map(|(name, t)| (name.clone(), read(t, &mut files))).collect()
}

fn of(path: &Utf8Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    bytes(&WeightsSource::open(path).unwrap().tensors)
}

/// Writes a diffusers folder of one file, from the small model with its tensors changed.
fn changed(folder: &Utf8Path, change: impl FnOnce(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) -> Utf8PathBuf {
    let model = folder.join("changed");
    fs::create_dir_all(&model).unwrap();
    fs::copy(small().join("config.json"), model.join("config.json")).unwrap();
    let mut tensors = of(&small());
    change(&mut tensors);
    write_tensors(&model.join("diffusion_pytorch_model.safetensors"), &tensors);
    model
}

fn write_tensors(path: &Utf8Path, tensors: &BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>) {
    let theirs = |dtype| match dtype {
        Dtype::F64 => Theirs::F64,
        Dtype::F32 => Theirs::F32,
        Dtype::BF16 => Theirs::BF16,
        Dtype::F16 => Theirs::F16,
        Dtype::I64 => Theirs::I64,
        other => panic!("no test needs {other}"),
    };
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(theirs(*dtype), shape.clone(), data).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Returns the names of all entries of a folder, hidden ones included.
fn names(folder: &Utf8Path) -> Vec<String> {
    let mut names: Vec<_> = folder.read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned()).collect();
    names.sort();
    names
}

/// Writes a run of two ranks, each of which saved one half of every tensor.
fn run_of_halves(folder: &Utf8Path) -> Utf8PathBuf {
    let inner = folder.join("inner");
    go(&ConvertRequest::new(small(), &inner, Form::Internal)).unwrap();
    let source = WeightsSource::open(&inner).unwrap();
    let mut manifest = source.checkpoint.clone().unwrap().manifest;
    let base = recipe::load("../../tests/fixtures/configs/valid/minimal.toml".into(), &[]).unwrap().recipe;
    let recipe = Recipe { model: source.model().unwrap().clone(), ..base };
    let id = RunId::parse("2026-11-20T0340-halves-k7f2").unwrap();
    let run = RunDir::of(&folder.join("runs"), &id);
    let dir = run.step_dir(40);
    fs::create_dir_all(&dir).unwrap();
    run.write_run(&Run {
        schema: SCHEMA,
        id: id.clone(),
        name: "halves".into(),
        curriculum: None,
        stage: None,
        created_s: NOW_S,
        git_commit: None,
        trainer_sha256: None,
        trainer_version: "0".into(),
        libtorch: "2".into(),
        start: StartFrom::Random,
        lineage: None,
        imported: None,
        attached: None,
        launched_from: None,
        recipe: recipe.to_table(),
    })
    .unwrap();
    let mut ranks = [BTreeMap::new(), BTreeMap::new()];
    let tensors = bytes(&source.tensors);
    for tensor in &mut manifest.tensors {
        let data = &tensors[&tensor.name].2;
        let (half, all) = ((data.len() / 8) as u64, (data.len() / 4) as u64);
        // Matrices are sharded by columns, as in a TP group of two ranks, and other tensors by elements.
        let boxes = match tensor.shape[..] {
            [rows, columns] if columns % 2 == 0 => {
                let size = vec![rows, columns / 2];
                [0, columns / 2].map(|at| Some(TensorBox { offset: vec![0, at], size: size.clone() }))
            }
            _ => [None, None],
        };
        let parts = if boxes[0].is_some() { [(0, half); 2] } else { [(0, half), (half, all - half)] };
        tensor.slices.clear();
        for (rank, ((start, len), within)) in parts.into_iter().zip(boxes).enumerate().rev() {
            let file = format!("rank-{rank:05}.safetensors");
            let slice = Slice { file, key: tensor.name.clone(), start, len, within };
            let mut own = vec![0; 4 * len as usize];
            let whole = TensorBox::whole(&tensor.shape);
            for run in slice.within(&tensor.shape).overlaps(slice.range(), &whole, 0..all) {
                let [here, there, len] = [run.here, run.there, run.len].map(|n| 4 * n as usize);
                own[here..here + len].copy_from_slice(&data[there..there + len]);
            }
            ranks[rank].insert(tensor.name.clone(), (Dtype::F32, vec![len as usize], own));
            tensor.slices.push(slice);
        }
    }
    let mut moment = manifest.tensors[0].clone();
    moment.name = format!("exp_avg/{}", moment.name);
    manifest.tensors.push(moment);
    manifest.files.clear();
    for (rank, tensors) in ranks.iter().enumerate() {
        let path = dir.join(format!("rank-{rank:05}.safetensors"));
        write_tensors(&path, tensors);
        manifest.files.push(rundir::file_sum(&path).unwrap());
    }
    let state = TrainState { step: 40, ..untrained() };
    rundir::write_toml(&dir.join("state.toml"), &state).unwrap();
    manifest.files.push(rundir::file_sum(&dir.join("state.toml")).unwrap());
    (manifest.run, manifest.step) = (id, 40);
    manifest.write(&dir).unwrap();
    run.root
}
