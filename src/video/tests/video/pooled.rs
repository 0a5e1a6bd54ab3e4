//! Tests of the pool with real clips.

use failure::ErrorCode;
use video::{CropMode, Order, Picture, Pool, PoolOptions};

use crate::clips::{HEIGHT, WIDTH, changed, clip, folder, numbers, programs};

#[test]
fn clips_are_decoded_ahead_in_order_and_a_bad_clip_fails_alone() {
    let good = clip("numbered.mp4", 60, &[]);
    let cut = changed("no-moov.mp4", &good, |bytes| bytes.truncate(bytes.len() / 2));
    let items = [(good.clone(), 3), (cut, 0), (folder().join("none.mp4"), 0), (good.clone(), 40), (good, 59)];
    let picture = Picture { crop: CropMode::None, ..Picture::new(WIDTH, HEIGHT) };
    let options = PoolOptions { workers: 2, order: Order::AsGiven };
    let pool = Pool::start(&programs(), options, items, move |programs, (path, index)| {
        let source = programs.open(path)?;
        programs.decode(&source, &[source.times()[*index]], &picture)
    });
    let got: Vec<_> = pool.map(|(_, result)| result.map(|frames| numbers(&frames)).map_err(|f| f.code)).collect();
    let number = |n| Ok(vec![Some(n)]);
    assert_eq!(got, [number(3), Err(ErrorCode::Malformed), Err(ErrorCode::NotFound), number(40), number(59)]);
}
