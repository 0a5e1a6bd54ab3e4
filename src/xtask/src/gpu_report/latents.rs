//! Makes a data set of one item whose latent and texts are noise.

use std::fs;
use std::io::{self, Write};

use camino::Utf8Path;

use super::Stage;

/// The channels of a latent.
const CHANNELS: usize = 16;

/// Writes the data set of a stage into `latents/STAGE` of a folder.
pub fn make(folder: &Utf8Path, stage: &Stage) -> io::Result<()> {
    let folder = folder.join("latents").join(stage.name);
    fs::create_dir_all(&folder)?;
    write(&folder.join("video"), "latent", &[stage.frames, CHANNELS, stage.rows, stage.columns])?;
    let mut texts = Vec::new();
    for segment in 0..stage.segments {
        let name = format!("text-{segment}");
        write(&folder.join(&name), "text", &[stage.text_len, stage.text_dim])?;
        texts.push(name);
    }
    let line = serde_json::json!({ "vid_emb": "video", "text_chunk_emb": texts });
    fs::write(folder.join("index.jsonl"), format!("{line}\n"))
}

/// Writes a safetensors file with one tensor of bf16 between -1 and 1.
fn write(path: &Utf8Path, name: &str, shape: &[usize]) -> io::Result<()> {
    let elements: usize = shape.iter().product();
    let header = serde_json::json!({ name: { "dtype": "BF16", "shape": shape, "data_offsets": [0, 2 * elements] } });
    let mut header = header.to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    // A linear congruential generator (Knuth's MMIX). Its high bits choose the sign, and the mantissa of a number from 0.5 to 1.
    let mut state = 1u64;
    for _ in 0..elements {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = 0x3f00 | (state >> 48 & 0x807f) as u16;
        file.write_all(&bits.to_le_bytes())?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_data_set_has_a_latent_and_the_texts_of_its_segments() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let stage = Stage::of_5b("tiny", 1, 2, 3);
        make(folder, &stage).unwrap();
        let folder = folder.join("latents/tiny");
        let bytes = fs::read(folder.join("text-1")).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        assert_eq!(header["text"]["shape"], serde_json::json!([3, 4096]));
        assert_eq!(bytes.len(), 8 + len + 2 * 3 * 4096);
        let value = |at: usize| f32::from_bits(u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) << 16);
        let values: Vec<f32> = (0..1000).map(|i| value(8 + len + 2 * i)).collect();
        assert!(values.iter().all(|value| (0.5..1.0).contains(&value.abs())));
        assert!(values.iter().any(|value| *value < 0.0) && values.iter().any(|value| *value > 0.0));
        let index = fs::read_to_string(folder.join("index.jsonl")).unwrap();
        let line: serde_json::Value = serde_json::from_str(&index).unwrap();
        assert_eq!(line["text_chunk_emb"].as_array().unwrap().len(), 2);
    }
}
