//! The table of the trainers whose logs and checkpoints vidtui can read.

use recipe::OtherTrainer;

use crate::formats::Formats;
use crate::{accelerate, finetrainers, open_sora, ttt_video_dit};

/// Returns the formats of the trainer that a recipe names; `None` if the recipe names none.
pub(crate) fn formats(trainer: OtherTrainer) -> Option<&'static Formats> {
    match trainer {
        OtherTrainer::None | OtherTrainer::Auto => None,
        OtherTrainer::OpenSora => Some(&open_sora::OPEN_SORA),
        OtherTrainer::Finetrainers => Some(&finetrainers::FINETRAINERS),
        OtherTrainer::CogvideoxFactory => Some(&accelerate::COGVIDEOX_FACTORY),
        OtherTrainer::VideoxFun => Some(&accelerate::VIDEOX_FUN),
        OtherTrainer::TttVideoDit => Some(&ttt_video_dit::TTT_VIDEO_DIT),
    }
}
