//! Decoded frames.

use std::fmt;

/// Pixels of some frames, all of one size.
#[derive(Clone, PartialEq, Eq)]
pub struct Frames {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// The number of frames.
    pub count: usize,
    /// `[F, H, W, 3]`: red, green and blue, BT.709 with the full range 0 to 255.
    pub rgb: Vec<u8>,
}

impl Frames {
    /// Returns the number of bytes of one frame.
    pub fn frame_bytes(&self) -> usize {
        self.width * self.height * 3
    }

    /// Returns the pixels `[H, W, 3]` of a frame.
    ///
    /// # Panics
    /// If there is no frame `index`.
    pub fn frame(&self, index: usize) -> &[u8] {
        let size = self.frame_bytes();
        &self.rgb[index * size..(index + 1) * size]
    }

    /// Returns a description of the mismatch if sizes and bytes disagree.
    pub(crate) fn mismatch(&self) -> Option<String> {
        let wanted = self.frame_bytes() * self.count;
        let (Self { width, height, count, .. }, have) = (self, self.rgb.len());
        (wanted == 0 || have != wanted)
            .then(|| format!("{count} frames of {width} × {height} need {wanted} bytes, but there are {have}"))
    }
}

impl fmt::Debug for Frames {
    /// Shows the sizes only, not the pixels.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, height, count, rgb } = self;
        write!(f, "Frames({count} × {width} × {height}, {} bytes)", rgb.len())
    }
}
