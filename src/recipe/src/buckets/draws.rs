//! Draws the uniform random numbers of numpy's `default_rng(seed)`: PCG64 (XSL-RR 128/64), seeded through `SeedSequence`.
//!
//! Sources: numpy's `bit_generator.pyx` and `pcg64.h`. Open-Sora draws the buckets of clips in this way.

/// A generator of uniform random numbers.
#[derive(Debug)]
pub(crate) struct Draws {
    state: u128,
    increment: u128,
}

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

impl Draws {
    /// Seeds a generator.
    pub fn new(seed: u64) -> Self {
        let words = seed_words(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut draws = Draws { state: 0, increment: wide(words[2], words[3]) << 1 | 1 };
        draws.step();
        draws.state = draws.state.wrapping_add(wide(words[0], words[1]));
        draws.step();
        draws
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// Draws a number in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        self.step();
        let mixed = ((self.state >> 64) ^ self.state) as u64;
        let bits = mixed.rotate_right((self.state >> 122) as u32);
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws an index below `count`. All have the same probability.
    pub fn index(&mut self, count: usize) -> usize {
        (self.uniform() * count as f64) as usize
    }
}

/// Returns `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_words(seed: u64) -> [u64; 4] {
    let hashed = |value: u32, constant: &mut u32, multiplier: u32| {
        let value = value ^ *constant;
        *constant = constant.wrapping_mul(multiplier);
        let value = value.wrapping_mul(*constant);
        value ^ (value >> 16)
    };
    let mut constant = 0x43b0_d7e5;
    let mut into_pool = |value: u32| hashed(value, &mut constant, 0x931e_8875);
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut into_pool);
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            let mixed = 0xca01_f9dd_u32
                .wrapping_mul(pool[to])
                .wrapping_sub(0x4973_f715_u32.wrapping_mul(into_pool(pool[from])));
            pool[to] = mixed ^ (mixed >> 16);
        }
    }
    let mut constant = 0x8b51_f9dd;
    let mut words = [0_u64; 4];
    for i in 0..8 {
        let word = hashed(pool[i % 4], &mut constant, 0x58f3_8ded);
        words[i / 2] |= u64::from(word) << (32 * (i % 2));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers were recorded from Open-Sora: draws of `default_rng(42)` and `default_rng(171)`.
    #[test]
    fn the_draws_are_those_of_numpy() {
        let mut of_42 = Draws::new(42);
        let mut of_171 = Draws::new(171);
        assert_eq!([(); 3].map(|()| of_42.uniform()), [0.7739560485559633, 0.4388784397520523, 0.8585979199113825]);
        assert_eq!([(); 2].map(|()| of_171.uniform()), [0.10249433382402584, 0.7590156345888944]);
    }

    #[test]
    fn indices_are_below_their_count() {
        let mut draws = Draws::new(7);
        let drawn: std::collections::BTreeSet<usize> = (0..100).map(|_| draws.index(3)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
