//! Reads, inspects and converts files of weights. Does not need libtorch.
//!
//! Files are read with `read_exact_at` and not memory-mapped, so that a file that shrinks causes an error, not a SIGBUS.

mod archive;
mod cast;
mod checkpoint_tensors;
mod compare;
mod config;
mod convert;
#[cfg(test)]
mod damaged_input_tests;
mod dcp;
pub mod destination;
mod dtype;
mod encoder;
mod finite;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod flight_record;
mod initial_values;
mod inspect;
mod json_text;
mod lfs;
mod location;
mod lora;
mod merge;
mod naming;
#[cfg(test)]
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod pickle;
mod report;
mod safetensors;
mod scheduler;
mod shards;
mod source;
mod stream;
mod tensor_chunks;
mod tensor_spans;
mod torch_file;
#[cfg(test)]
mod torch_tests;
mod wan;
mod write;

pub use compare::{Changed, Difference, compare};
pub use config::{Config, ModelFamily, PublishedModel, model_from_diffusers, model_to_diffusers};
pub use convert::{ConvertPlan, ConvertRequest, Converted, Form, plan_conversion};
pub use dtype::Dtype;
pub use encoder::config as encoder_config;
pub use encoder::{
    EncoderFiles, EncoderReader, Parameter, ParameterTable, Peak, Rows, T5Config, TileSize, TileSpan, Tiles, VaeConfig,
    VideoVaeConfig, WAN_TILE, WanVaeConfig, Window, check_latent, check_video, t5_memory, vae_memory, windows,
};
pub use encoder::{level_memory, wan_vae};
pub use finite::{NotFinite, count as count_not_finite};
pub use flight_record::{RecordedCollective, read_flight_record};
pub use inspect::{Inspection, Stats, TensorRow, inspect, inspect_with};
pub use location::{SourceKind, SourceLocation, TTT_FILE};
pub use lora::{Factors, LoraFile, LoraForm, LoraLayer};
pub use naming::Names;
pub use report::{Initialized, Mapped, MappingRow, Report};
pub use safetensors::{Error, Header, TensorInfo, read_range};
pub use scheduler::SchedulerConfig;
pub use source::{WeightsSource, identify};
pub use stream::TensorToWrite;
pub use tensor_spans::{Files, Span, StoredTensor, Tensors, tensors_of_header};
pub use torch_file::{is_torch_file, open_torch_file, open_torch_tensor};
pub use write::{Doing, NewTensorFile, OnProgress, WriteProgress, WrittenFiles, write_tensor_files};
