//! The table of the trainers that vidtui can read.

use recipe::Adapter;

use crate::system::System;
use crate::{accelerate, finetrainers, open_sora, ttt_video_dit};

/// Returns the system that a recipe names.
pub(crate) fn system(adapter: Adapter) -> Option<&'static System> {
    match adapter {
        Adapter::None => None,
        Adapter::OpenSora => Some(&open_sora::OPEN_SORA),
        Adapter::Finetrainers => Some(&finetrainers::FINETRAINERS),
        Adapter::CogvideoxFactory => Some(&accelerate::COGVIDEOX_FACTORY),
        Adapter::VideoxFun => Some(&accelerate::VIDEOX_FUN),
        Adapter::TttVideoDit => Some(&ttt_video_dit::TTT_VIDEO_DIT),
    }
}
