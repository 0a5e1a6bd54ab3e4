//! Reads parameters from the files of an encoder.

use failure::{ErrorCode, Failure};
use tch::{Device, Kind, TchError, Tensor};
use torch_error::{ErrorKind, TorchError};
use weights::{Dtype, EncoderReader};

/// Reads parameters by name in the kind and on the device of the computation.
pub struct Params<'a> {
    reader: EncoderReader<'a>,
    kind: Kind,
    device: Device,
}

impl<'a> Params<'a> {
    pub fn new(reader: EncoderReader<'a>, kind: Kind, device: Device) -> Self {
        Params { reader, kind, device }
    }

    /// Returns a hash of all parameters that were read.
    pub fn identity(&self) -> String {
        self.reader.identity()
    }

    /// Returns whether the table has a parameter.
    pub fn has(&self, name: &str) -> bool {
        self.reader.has(name)
    }

    /// Adds a parameter to the hash without loading it.
    pub fn hash(&mut self, name: &str) -> Result<(), Failure> {
        self.reader.hash(name)
    }

    /// Reads a parameter in the kind of the computation.
    pub fn tensor(&mut self, name: &str) -> Result<Tensor, Failure> {
        self.tensor_of(name, self.kind)
    }

    /// Reads a small parameter in fp32, whatever the kind of the computation.
    pub fn precise(&mut self, name: &str) -> Result<Tensor, Failure> {
        self.tensor_of(name, Kind::Float)
    }

    /// Reads several matrices and stacks their rows in one.
    pub fn joined(&mut self, names: &[String], rows: i64, columns: i64) -> Result<Tensor, Failure> {
        let what = |error: TchError| failed(&format!("cannot load {}", names[0]), error);
        // Allocate the whole first, so that the freed parts leave no holes between weights that stay.
        let whole = Tensor::f_empty([rows, columns], (self.kind, self.device)).map_err(what)?;
        let mut at = 0;
        for name in names {
            let part = self.tensor(name)?;
            let count = part.size()[0];
            whole.f_narrow(0, at, count).and_then(|mut place| place.f_copy_(&part)).map_err(what)?;
            at += count;
        }
        Ok(whole)
    }

    fn tensor_of(&mut self, name: &str, kind: Kind) -> Result<Tensor, Failure> {
        let device = self.device;
        let (bytes, dtype, shape) = self.reader.read(name)?;
        let stored = kind_of(dtype);
        let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let read = || Tensor::f_from_data_size(bytes, &shape, stored)?.f_to_device(device)?.f_to_kind(kind);
        read().map_err(|error| failed(&format!("cannot load {name}"), error))
    }
}

/// Returns the kind of a stored tensor.
pub fn kind_of(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F64 => Kind::Double,
        _ => Kind::Float,
    }
}

/// Converts an error of libtorch into a failure. Out of memory has its own code, so that callers can retry with smaller
/// tiles or batches.
pub fn failed(what: &str, error: impl Into<TorchError>) -> Failure {
    let error = error.into();
    let (code, fix) = match error.kind {
        ErrorKind::OutOfMemory => (ErrorCode::OutOfMemory, "use tiles, smaller tiles, or a smaller batch"),
        ErrorKind::Device(_) => (ErrorCode::DeviceFailed, "see libtorch's message; `vidtui check` tests the device"),
        _ => (ErrorCode::Internal, "see libtorch's message; if it fails again, report it with the log"),
    };
    Failure::new(code, what, error.text, fix)
}

/// Checks that encoders can compute in `kind`: bf16 or fp32.
pub fn check_kind(kind: Kind, what: &str) -> Result<(), Failure> {
    match kind {
        Kind::Float | Kind::BFloat16 => Ok(()),
        other => {
            let why = format!("it cannot compute in {other:?}");
            Err(Failure::new(ErrorCode::InvalidArgument, format!("cannot open {what}"), why, "use bf16 or fp32"))
        }
    }
}
