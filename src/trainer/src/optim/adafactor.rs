//! Adafactor: approximates the second moment of a matrix by the product of the means of its rows and columns.
//!
//! Shards and TP split rows and columns. Therefore every rank has the means of all tensors, and the ranks add up their sums.
//!
//! Source: Shazeer and Stern 2018 (arXiv 1804.04235); `torch.optim.Adafactor` 2.11.

use super::{Method, Segment, StateTensor, StateValues, Update, counts, trained};
use c10d::waits::{self, Place};
use recipe::{Optimizer, ParamSpec};
use sharding::flat::ParamKind;
use sharding::fsdp::{Access, Fsdp, OwnedRange, ShardView};
use sharding::mesh::MeshGroups;
use std::collections::HashMap;
use tch::{Kind, Tensor};

pub struct Adafactor {
    /// Every trained tensor, in the same order on every rank.
    tensors: Vec<Whole>,
    /// The means of the rows of all matrices, then those of their columns; fp32.
    means: Tensor,
    /// One divided by the number of elements of each mean.
    shares: Tensor,
    /// The trained ranges of this rank.
    ranges: Vec<Range>,
}

/// A trained tensor. A tensor of more than two dimensions is a batch of matrices.
struct Whole {
    unit: usize,
    slot: usize,
    elements: f64,
    matrix: Option<Matrix>,
}

/// A tensor's shape, and where its rows and columns are in the means.
#[derive(Clone)]
struct Matrix {
    shape: Vec<usize>,
    batch: i64,
    rows: i64,
    columns: i64,
    /// The place of the first row in the means; then that of the first column.
    first_row: i64,
    first_column: i64,
}

/// A range of a tensor that this rank owns.
struct Range {
    unit: usize,
    slot: usize,
    /// The index in [`Adafactor::tensors`].
    tensor: usize,
    segment: Segment,
    /// Whether this rank adds the range to sums; see [`counts`].
    counted: bool,
    moment: Moment,
}

enum Moment {
    Factored(Grid),
    /// The second moment of a tensor of one dimension: one number for each element.
    Full(Tensor),
}

/// The rows of a matrix that a range touches. The first and the last may be incomplete.
struct Grid {
    matrix: Matrix,
    /// The place of each row in the means.
    rows: Tensor,
    /// The matrix of the batch that each row belongs to.
    of_batch: Tensor,
    /// The first column of the rank's TP part, and the number of its columns.
    first: i64,
    columns: i64,
    /// Elements of the first row before the range.
    phase: i64,
    /// Elements of the last row after the range.
    after: i64,
}

impl Adafactor {
    pub fn new(fsdp: &Fsdp, tables: &[Vec<ParamSpec>], o: &Optimizer) -> Self {
        let (mut tensors, mut numbers, mut places) = (Vec::new(), HashMap::new(), 0);
        let trained_slots = tables.iter().enumerate().flat_map(|(unit, specs)| {
            let slots = specs.iter().enumerate();
            slots
                .filter(move |(slot, _)| fsdp.layout(unit).slots[*slot].kind == ParamKind::Trained)
                .map(move |(slot, spec)| (unit, slot, spec))
        });
        for (unit, slot, spec) in trained_slots {
            let matrix = Matrix::of(&spec.shape, &mut places);
            numbers.insert((unit, slot), tensors.len());
            tensors.push(Whole { unit, slot, elements: spec.len() as f64, matrix });
        }
        let groups = fsdp.groups();
        let range = |owned: OwnedRange| {
            let spec = &tables[owned.unit][owned.range.slot];
            let tensor = numbers[&(owned.unit, owned.range.slot)];
            Range {
                unit: owned.unit,
                slot: owned.range.slot,
                tensor,
                segment: Segment::of(o, spec, &owned),
                counted: counts(groups, owned.range.tp_layout),
                moment: match &tensors[tensor].matrix {
                    Some(matrix) => Moment::Factored(Grid::of(matrix, spec, &owned, groups)),
                    None => Moment::Full(Tensor::zeros([owned.range.len], (Kind::Float, groups.device))),
                },
            }
        };
        let ranges = trained(fsdp).map(range).collect();
        let mut shares = vec![0f32; places as usize];
        for matrix in tensors.iter().filter_map(|whole| whole.matrix.as_ref()) {
            let part = |first: i64, len: i64| first as usize..(first + len) as usize;
            shares[part(matrix.first_row, matrix.batch * matrix.rows)].fill(1.0 / matrix.columns as f32);
            shares[part(matrix.first_column, matrix.batch * matrix.columns)].fill(1.0 / matrix.rows as f32);
        }
        let means = Tensor::zeros([places], (Kind::Float, groups.device));
        Adafactor { tensors, means, shares: Tensor::from_slice(&shares).to_device(groups.device), ranges }
    }

    /// Returns one divided by the mean of the row means, by index of the tensor: a number for each matrix of its batch.
    fn row_scales(&self, least: f64) -> HashMap<usize, Tensor> {
        let numbers = self.ranges.iter().map(|range| range.tensor).collect::<std::collections::BTreeSet<_>>();
        let scale = |number: usize| {
            let matrix = self.tensors[number].matrix.as_ref()?;
            let rows = self.means.narrow(0, matrix.first_row, matrix.batch * matrix.rows);
            let mean = rows.view([matrix.batch, matrix.rows]).mean_dim(&[1i64][..], false, Kind::Float);
            Some((number, mean.clamp_min(least).reciprocal()))
        };
        numbers.into_iter().filter_map(scale).collect()
    }
}

impl Method for Adafactor {
    fn step(&mut self, update: &Update<'_>) -> c10d::Result<()> {
        let &Update { fsdp, optimizer: o, lr, grad_scale, step } = update;
        let groups = fsdp.groups();
        let part = |view: &ShardView<'_>, range: &Range| [view.master, view.grad].map(|t| range.segment.part(t));
        let fresh = (step as f64).powf(-o.adafactor_decay);
        // Sums of squares: of gradients by row and column, and of whole tensors: weights, then updates.
        let sums = self.means.zeros_like();
        let squares = Tensor::zeros([2, self.tensors.len() as i64], (Kind::Double, groups.device));
        let add = |row: i64, range: &Range, tensor: &Tensor| {
            if range.counted {
                let sum = tensor.norm().to_kind(Kind::Double).square();
                let _ = squares.get(row).get(range.tensor as i64).g_add_(&sum);
            }
        };
        let no_grad = tch::no_grad_guard();
        fsdp.visit(Access::Write, |view| {
            for range in self.ranges.iter().filter(|range| range.unit == view.unit) {
                let [weights, mut grad] = part(&view, range);
                if grad_scale != 1.0 {
                    let _ = grad.g_mul_scalar_(grad_scale);
                }
                add(0, range, &weights);
                if let (Moment::Factored(grid), true) = (&range.moment, range.counted) {
                    grid.add_squares(&grad, &sums);
                }
            }
            Ok(())
        })?;
        groups.sum_over_replica(&sums)?;
        let _ = self.means.lerp_(&(sums * &self.shares), fresh);
        let scales = self.row_scales(o.adafactor_eps1);
        // The update overwrites the gradient.
        fsdp.visit(Access::Write, |view| {
            for range in self.ranges.iter_mut().filter(|range| range.unit == view.unit) {
                let [_, mut grad] = part(&view, range);
                let moment = match &mut range.moment {
                    Moment::Factored(grid) => grid.moment(&self.means, &scales[&range.tensor]),
                    Moment::Full(moment) => moment.lerp_(&grad.square(), fresh).shallow_clone(),
                };
                let _ = grad.g_mul_(&moment.clamp_min(o.adafactor_eps1 * o.adafactor_eps1).rsqrt());
                add(1, range, &grad);
            }
            Ok(())
        })?;
        groups.sum_over_replica(&squares)?;
        let squares = waits::read(Place::OptimizerSums, &squares.view(-1));
        let (of_weights, of_updates) = squares.split_at(self.tensors.len());
        fsdp.visit(Access::Write, |view| {
            for range in self.ranges.iter().filter(|range| range.unit == view.unit) {
                let elements = self.tensors[range.tensor].elements;
                let root_mean = |squares: &[f64]| (squares[range.tensor] / elements).sqrt();
                let rate = lr.of(o, range.segment.rate);
                let size = root_mean(of_weights).max(o.adafactor_eps2) * rate.min(1.0 / (step as f64).sqrt());
                let clip = (root_mean(of_updates) / o.adafactor_clip).max(1.0);
                let [mut weights, update] = part(&view, range);
                if range.segment.weight_decay != 0.0 {
                    let _ = weights.g_mul_scalar_(1.0 - rate * range.segment.weight_decay);
                }
                weights -= update * (size / clip);
            }
            Ok(())
        })?;
        drop(no_grad);
        Ok(())
    }

    fn of(&self, owned: &OwnedRange) -> Vec<StateTensor> {
        let is_of = |range: &&Range| (range.unit, range.slot) == (owned.unit, owned.range.slot);
        match self.ranges.iter().find(is_of).map(|range| &range.moment) {
            Some(Moment::Full(moment)) => {
                vec![StateTensor { prefix: "exp_avg_sq/", values: StateValues::Elements(moment.shallow_clone()) }]
            }
            _ => Vec::new(),
        }
    }

    fn of_whole_tensors(&self) -> Vec<(usize, usize, StateTensor)> {
        let mut all = Vec::new();
        for Whole { unit, slot, matrix, .. } in &self.tensors {
            let Some(matrix) = matrix else { continue };
            let (leading, last) = (matrix.shape.len() - 2, matrix.shape.len() - 1);
            let without = |dim: usize| {
                let kept = matrix.shape.iter().enumerate().filter(|(i, _)| *i != dim);
                kept.map(|(_, size)| *size).collect::<Vec<_>>()
            };
            let mut push = |prefix, shape: Vec<usize>, first, len| {
                let values = StateValues::Whole { shape, values: self.means.narrow(0, first, len) };
                all.push((*unit, *slot, StateTensor { prefix, values }));
            };
            push("exp_avg_sq_row/", without(last), matrix.first_row, matrix.batch * matrix.rows);
            push("exp_avg_sq_col/", without(leading), matrix.first_column, matrix.batch * matrix.columns);
        }
        all
    }
}

impl Matrix {
    /// Reserves the places of a tensor's rows and columns; `None` for a tensor of one dimension.
    fn of(shape: &[usize], places: &mut i64) -> Option<Self> {
        let [leading @ .., rows, columns] = shape else { return None };
        let (batch, rows, columns) = (leading.iter().product::<usize>() as i64, *rows as i64, *columns as i64);
        let mut reserve = |len: i64| {
            *places += len;
            *places - len
        };
        let (first_row, first_column) = (reserve(batch * rows), reserve(batch * columns));
        Some(Matrix { shape: shape.to_vec(), batch, rows, columns, first_row, first_column })
    }
}

impl Grid {
    fn of(matrix: &Matrix, spec: &ParamSpec, owned: &OwnedRange, groups: &MeshGroups) -> Self {
        let (offset, size) = spec.part(groups.tp.rank(), groups.tp.size());
        let last = size.len() - 1;
        let (columns, start, end) = (size[last] as i64, owned.range.start, owned.range.start + owned.range.len);
        let (from, to) = (start / columns, (end + columns - 1) / columns);
        // Returns the number in the whole tensor of a row of the TP part.
        let whole_row = |row: i64| {
            let (mut rest, mut number, mut stride) = (row as usize, 0, 1);
            for dim in (0..last).rev() {
                number += (rest % size[dim] + offset[dim]) * stride;
                rest /= size[dim];
                stride *= spec.shape[dim];
            }
            number as i64
        };
        let rows: Vec<i64> = (from..to).map(whole_row).collect();
        let places: Vec<i64> = rows.iter().map(|row| matrix.first_row + row).collect();
        let of_batch: Vec<i64> = rows.iter().map(|row| row / matrix.rows).collect();
        Grid {
            matrix: matrix.clone(),
            rows: Tensor::from_slice(&places).to_device(groups.device),
            of_batch: Tensor::from_slice(&of_batch).to_device(groups.device),
            first: offset[last] as i64,
            columns,
            phase: start - from * columns,
            after: to * columns - end,
        }
    }

    /// Returns the part of `means` for this grid's columns, for all matrices of the batch.
    fn columns_of(&self, means: &Tensor) -> Tensor {
        let Matrix { batch, columns, first_column, .. } = self.matrix;
        means.narrow(0, first_column, batch * columns).view([batch, columns]).narrow(1, self.first, self.columns)
    }

    /// Adds the squares of the range to the sums of their rows and columns.
    fn add_squares(&self, grad: &Tensor, sums: &Tensor) {
        let squares = grad.constant_pad_nd([self.phase, self.after]).view([-1, self.columns]).square();
        let by_row = squares.sum_dim_intlist(&[1i64][..], false, Kind::Float);
        let _ = sums.shallow_clone().index_add_(0, &self.rows, &by_row);
        let mut columns = self.columns_of(sums);
        match self.matrix.batch {
            1 => columns += squares.sum_dim_intlist(&[0i64][..], true, Kind::Float),
            _ => columns += columns.zeros_like().index_add(0, &self.of_batch, &squares),
        }
    }

    /// Returns the second moment of the range's elements.
    fn moment(&self, means: &Tensor, scales: &Tensor) -> Tensor {
        let rows = means.index_select(0, &self.rows) * scales.index_select(0, &self.of_batch);
        let columns = match self.matrix.batch {
            1 => self.columns_of(means),
            _ => self.columns_of(means).index_select(0, &self.of_batch),
        };
        let all = (rows.unsqueeze(1) * columns).view(-1);
        all.narrow(0, self.phase, all.size()[0] - self.phase - self.after)
    }
}
