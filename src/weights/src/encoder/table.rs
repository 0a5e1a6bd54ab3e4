//! Tables of the tensors of encoders.

use super::Parameter;

/// A table of tensors under construction.
#[derive(Debug, Default)]
pub struct ParameterTable(pub Vec<Parameter>);

impl ParameterTable {
    /// Adds a tensor.
    pub fn tensor(&mut self, name: impl Into<String>, shape: impl Into<Vec<usize>>) {
        self.0.push(Parameter::new(name, shape));
    }

    /// Adds a weight of some shape and a bias for its first axis.
    pub fn affine(&mut self, name: &str, shape: impl Into<Vec<usize>>) {
        let shape = shape.into();
        let bias = [shape[0]];
        self.tensor(format!("{name}.weight"), shape);
        self.tensor(format!("{name}.bias"), bias);
    }
}
