//! Computes a video in overlapping spatial tiles and blends them.

use tch::{Kind, TchError, Tensor};
use weights::Tiles;

/// Computes a sample `[C, T, H, W]` tile by tile. Only the row of tiles above is kept.
pub fn compute(
    sample_cthw: &Tensor,
    tiles: &Tiles,
    compute: &impl Fn(&Tensor) -> Result<Tensor, TchError>,
) -> Result<Tensor, TchError> {
    let (height, width) = (sample_cthw.size()[2], sample_cthw.size()[3]);
    let mut above: Vec<Tensor> = Vec::new();
    let mut rows = Vec::new();
    for top in starts(height, tiles.rows.stride) {
        let mut row: Vec<Tensor> = Vec::new();
        for (column, left) in starts(width, tiles.columns.stride).enumerate() {
            let part = sample_cthw.f_narrow(2, top, (tiles.rows.size as i64).min(height - top))?.f_narrow(
                3,
                left,
                (tiles.columns.size as i64).min(width - left),
            )?;
            let tile = compute(&part)?;
            // As in diffusers, tiles are blended with neighbours that are already blended.
            if let Some(above) = above.get(column) {
                blend(above, &tile, 2, tiles.rows.blend as i64)?;
            }
            if let Some(before) = row.last() {
                blend(before, &tile, 3, tiles.columns.blend as i64)?;
            }
            row.push(tile);
        }
        let kept = |tile: &Tensor| {
            let [height, width] = [2, 3].map(|axis| tile.size()[axis]);
            let rows = tile.f_narrow(2, 0, height.min(tiles.rows.keep as i64))?;
            rows.f_narrow(3, 0, width.min(tiles.columns.keep as i64))
        };
        rows.push(Tensor::f_cat(&row.iter().map(kept).collect::<Result<Vec<_>, _>>()?, 3)?);
        above = row;
    }
    drop(above);
    Tensor::f_cat(&rows, 2)
}

/// Returns where tiles begin along a side.
fn starts(length: i64, stride: usize) -> impl Iterator<Item = i64> {
    (0..length).step_by(stride)
}

/// Blends the first frames (axis 1), rows (axis 2) or columns (axis 3) of a tile with the last ones of its neighbour. The weight of
/// the tile grows from 0.
pub fn blend(neighbour: &Tensor, tile: &Tensor, axis: i64, extent: i64) -> Result<(), TchError> {
    let (length, own) = (neighbour.size()[axis as usize], tile.size()[axis as usize]);
    let extent = extent.min(length).min(own);
    if extent == 0 {
        return Ok(());
    }
    let mut share_shape = [1; 4];
    share_shape[axis as usize] = extent;
    let options = (Kind::Float, tile.device());
    let share = Tensor::f_arange(extent, options)?.f_div_scalar(extent as f64)?.f_view(share_shape)?;
    let share = share.f_to_kind(tile.kind())?;
    let theirs = neighbour.f_narrow(axis, length - extent, extent)?.f_mul(&share.f_neg()?.f_add_scalar(1.0)?)?;
    let mut ours = tile.f_narrow(axis, 0, extent)?;
    ours.f_mul_(&share)?.f_add_(&theirs).map(drop)
}
