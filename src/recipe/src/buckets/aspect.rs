//! Ratios of height to width, and the sizes of frames that have them.

/// A ratio of height to width, and the size of a frame in pixels: height, width.
pub(super) type Aspect = (f64, [usize; 2]);

/// Returns the size whose ratio is nearest to that of a clip; the first of equally near ones.
pub(super) fn nearest(aspects: &[Aspect], height: usize, width: usize) -> [usize; 2] {
    nearest_ratio(aspects, height as f64 / width as f64)
}

/// Returns the size whose ratio is nearest to `ratio`; the first of equally near ones.
pub(super) fn nearest_ratio(aspects: &[Aspect], ratio: f64) -> [usize; 2] {
    let near = aspects.iter().min_by(|a, b| (a.0 - ratio).abs().total_cmp(&(b.0 - ratio).abs()));
    near.expect("every resolution has a size").1
}

/// Returns the number of pixels and the sizes of a resolution of Open-Sora 1.2; `None` for an unknown name.
pub(super) fn of_open_sora_1_2(name: &str) -> Option<(usize, Vec<Aspect>)> {
    let square = |side: usize| (side * side, fun_512(side as f64 / 512.0));
    let rows = RESOLUTIONS.iter().find(|(known, ..)| *known == name);
    Some(match (name, rows) {
        ("256", _) => square(256),
        ("512", _) => square(512),
        ("1024", _) => square(1024),
        ("2048", _) => square(2048),
        (_, Some((_, pixels, ratios, sizes))) => (*pixels, ratios.iter().copied().zip(sizes.iter().copied()).collect()),
        _ => return None,
    })
}

/// The names of all resolutions of Open-Sora 1.2.
pub(super) const OPEN_SORA_1_2: [&str; 13] =
    ["144p", "256", "240p", "360p", "512", "480p", "720p", "1024", "1080p", "2k", "2048", "2880", "4k"];

/// Returns PixArt's sizes of about 512 × 512 pixels, which VideoX-Fun also uses, with each side multiplied by `scale`.
pub(super) fn fun_512(scale: f64) -> Vec<Aspect> {
    let scaled = |side: usize| (side as f64 * scale) as usize;
    PIXART.iter().map(|(ratio, size)| (*ratio, size.map(scaled))).collect()
}

/// Returns Open-Sora 2's sizes of about `pixels` pixels: multiples of 16, for nine ratios and their transposes.
pub(super) fn of_open_sora_2(pixels: usize) -> Vec<Aspect> {
    const RATIOS: [[f64; 2]; 9] = [
        [2.39, 1.0],
        [2.0, 1.0],
        [16.0, 9.0],
        [1.85, 1.0],
        [9.0, 16.0],
        [5.0, 8.0],
        [3.0, 2.0],
        [4.0, 3.0],
        [1.0, 1.0],
    ];
    let multiple = super::MULTIPLE;
    let whole = |side: f64| (side / multiple as f64).floor() as usize * multiple;
    let mut aspects: Vec<Aspect> = Vec::new();
    let mut add = |ratio: f64, size: [usize; 2]| {
        if aspects.iter().all(|(_, known)| *known != size) {
            aspects.push((ratio, size));
        }
    };
    let sizes = RATIOS.map(|[wide, high]| {
        let width = whole((pixels as f64 * (wide / high)).sqrt()).max(multiple);
        let height = whole((pixels / width) as f64).max(multiple);
        let near = |[height, width]: [usize; 2]| (height * width).abs_diff(pixels);
        let steps = [
            [height + multiple, width],
            [height - multiple, width],
            [height, width + multiple],
            [height, width - multiple],
        ];
        let best =
            steps.into_iter().fold([height, width], |best, size| if near(size) < near(best) { size } else { best });
        (high / wide, wide / high, best)
    });
    for (ratio, _, size) in sizes {
        add(ratio, size);
    }
    for (_, ratio, [height, width]) in sizes {
        add(ratio, [width, height]);
    }
    aspects
}

/// The ratios of the resolutions from 144p to 2k.
const RATIOS: [f64; 17] =
    [0.38, 0.43, 0.48, 0.5, 0.53, 0.54, 0.56, 0.62, 0.67, 0.75, 1.0, 1.33, 1.5, 1.78, 1.89, 2.0, 2.08];
/// The ratios of 4k. 0.62 comes before 0.56, as in Open-Sora.
const RATIOS_4K: [f64; 17] =
    [0.38, 0.43, 0.48, 0.5, 0.53, 0.54, 0.62, 0.56, 0.67, 0.75, 1.0, 1.33, 1.5, 1.78, 1.89, 2.0, 2.08];
/// The ratios of 2880.
const RATIOS_2880: [f64; 40] = [
    0.25, 0.26, 0.27, 0.28, 0.32, 0.33, 0.34, 0.4, 0.42, 0.47, 0.49, 0.51, 0.55, 0.59, 0.68, 0.72, 0.78, 0.83, 0.89,
    0.93, 1.0, 1.07, 1.12, 1.21, 1.28, 1.39, 1.47, 1.7, 1.82, 2.03, 2.13, 2.39, 2.5, 2.92, 3.0, 3.12, 3.68, 3.82, 3.95,
    4.0,
];

/// Name, pixels, ratios and sizes.
type Resolution = (&'static str, usize, &'static [f64], &'static [[usize; 2]]);

#[rustfmt::skip]
const RESOLUTIONS: &[Resolution] = &[
    ("144p", 36864, &RATIOS, &[
        [117, 312], [125, 291], [133, 277], [135, 270], [139, 262], [141, 260], [144, 256], [151, 241], [156, 234],
        [166, 221], [192, 192], [221, 165], [235, 156], [256, 144], [263, 139], [271, 135], [277, 132],
    ]),
    ("240p", 102240, &RATIOS, &[
        [196, 522], [210, 490], [222, 462], [226, 452], [232, 438], [236, 436], [240, 426], [252, 404], [262, 393],
        [276, 368], [320, 320], [370, 278], [392, 262], [426, 240], [440, 232], [452, 226], [462, 222],
    ]),
    ("360p", 230400, &RATIOS, &[
        [294, 784], [314, 732], [332, 692], [340, 680], [350, 662], [352, 652], [360, 640], [380, 608], [392, 588],
        [416, 554], [480, 480], [554, 416], [588, 392], [640, 360], [660, 350], [678, 340], [692, 332],
    ]),
    ("480p", 409920, &RATIOS, &[
        [392, 1046], [420, 980], [444, 925], [452, 904], [466, 880], [470, 870], [480, 854], [506, 810], [522, 784],
        [554, 738], [640, 640], [740, 555], [784, 522], [854, 480], [880, 466], [906, 454], [924, 444],
    ]),
    ("720p", 921600, &RATIOS, &[
        [588, 1568], [628, 1466], [666, 1388], [678, 1356], [698, 1318], [706, 1306], [720, 1280], [758, 1212], [784, 1176],
        [832, 1110], [960, 960], [1108, 832], [1176, 784], [1280, 720], [1320, 698], [1358, 680], [1386, 666],
    ]),
    ("1080p", 2073600, &RATIOS, &[
        [882, 2352], [942, 2198], [998, 2080], [1018, 2036], [1048, 1980], [1058, 1958], [1080, 1920], [1138, 1820], [1176, 1764],
        [1248, 1664], [1440, 1440], [1662, 1246], [1764, 1176], [1920, 1080], [1980, 1048], [2036, 1018], [2078, 998],
    ]),
    ("2k", 3686400, &RATIOS, &[
        [1176, 3136], [1256, 2930], [1330, 2770], [1358, 2716], [1398, 2640], [1412, 2612], [1440, 2560], [1518, 2428], [1568, 2352],
        [1662, 2216], [1920, 1920], [2218, 1664], [2352, 1568], [2560, 1440], [2638, 1396], [2716, 1358], [2772, 1330],
    ]),
    ("2880", 8294400, &RATIOS_2880, &[
        [1408, 5760], [1408, 5568], [1408, 5376], [1408, 5184], [1600, 4992], [1600, 4800], [1600, 4672], [1792, 4480], [1792, 4288],
        [1920, 4096], [1920, 3904], [1920, 3776], [2112, 3840], [2112, 3584], [2304, 3392], [2304, 3200], [2496, 3200], [2496, 3008],
        [2688, 3008], [2688, 2880], [2880, 2880], [2880, 2688], [3008, 2688], [3008, 2496], [3200, 2496], [3200, 2304], [3392, 2304],
        [3584, 2112], [3840, 2112], [3904, 1920], [4096, 1920], [4288, 1792], [4480, 1792], [4672, 1600], [4800, 1600], [4992, 1600],
        [5184, 1408], [5376, 1408], [5568, 1408], [5760, 1408],
    ]),
    ("4k", 8294400, &RATIOS_4K, &[
        [1764, 4704], [1886, 4400], [1996, 4158], [2036, 4072], [2096, 3960], [2118, 3918], [2276, 3642], [2160, 3840], [2352, 3528],
        [2494, 3326], [2880, 2880], [3326, 2494], [3528, 2352], [3840, 2160], [3958, 2096], [4072, 2036], [4156, 1994],
    ]),
];

/// The sizes of PixArt with about 512 × 512 pixels.
#[rustfmt::skip]
const PIXART: [Aspect; 40] = [
    (0.25, [256, 1024]), (0.26, [256, 992]), (0.27, [256, 960]), (0.28, [256, 928]), (0.32, [288, 896]), (0.33, [288, 864]),
    (0.35, [288, 832]), (0.4, [320, 800]), (0.42, [320, 768]), (0.48, [352, 736]), (0.5, [352, 704]), (0.52, [352, 672]),
    (0.57, [384, 672]), (0.6, [384, 640]), (0.68, [416, 608]), (0.72, [416, 576]), (0.78, [448, 576]), (0.82, [448, 544]),
    (0.88, [480, 544]), (0.94, [480, 512]), (1.0, [512, 512]), (1.07, [512, 480]), (1.13, [544, 480]), (1.21, [544, 448]),
    (1.29, [576, 448]), (1.38, [576, 416]), (1.46, [608, 416]), (1.67, [640, 384]), (1.75, [672, 384]), (2.0, [704, 352]),
    (2.09, [736, 352]), (2.4, [768, 320]), (2.5, [800, 320]), (2.89, [832, 288]), (3.0, [864, 288]), (3.11, [896, 288]),
    (3.62, [928, 256]), (3.75, [960, 256]), (3.88, [992, 256]), (4.0, [1024, 256]),
];
