//! Compares the resized picture that conditions a video with recorded results of Pillow.

use safetensors::SafeTensors;
use video::{Filter, Frames, resize};

use crate::oracle;

#[test]
fn oracle_pictures_are_resized_as_pillow_does() {
    let files = oracle::entries("i2v", "preprocess*.safetensors", |path| {
        path.extension() == Some("safetensors") && path.file_name().is_some_and(|name| name.starts_with("preprocess"))
    });
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let cases: Vec<&str> =
            tensors.names().into_iter().filter_map(|name| name.strip_suffix(".in.image_u8")).collect();
        assert!(!cases.is_empty(), "{file} has no case");
        for case in cases {
            let (from, to) = (
                tensors.tensor(&format!("{case}.in.image_u8")).unwrap(),
                tensors.tensor(&format!("{case}.out.image")).unwrap(),
            );
            let (&[in_h, in_w, 3], &[1, 3, height, width]) = (from.shape(), to.shape()) else {
                panic!("{case}: {:?} to {:?}", from.shape(), to.shape());
            };
            let picture = Frames { width: in_w, height: in_h, count: 1, rgb: from.data().to_vec() };
            let resized = resize(&picture, width, height, Filter::Lanczos);
            let wanted: Vec<f32> =
                to.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            let mut most = 0;
            for (i, &value) in resized.rgb.iter().enumerate() {
                let (pixel, channel) = (i / 3, i % 3);
                let level = ((wanted[channel * width * height + pixel] + 1.0) * 127.5).round() as u8;
                most = most.max(level.abs_diff(value));
            }
            println!("{case}: {most} levels");
            assert!(most <= 1, "{case}: {most} levels");
        }
    }
}
