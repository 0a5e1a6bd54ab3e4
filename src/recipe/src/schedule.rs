//! Learning rate schedules, and gradient clipping limits that change over the steps.

use std::f64::consts::PI;

use crate::Optimizer;

words! {
    /// How a learning rate changes over the steps of a run.
    pub enum LrSchedule {
        /// Stays at the peak.
        Constant = "constant",
        /// Falls in a straight line.
        Linear = "linear",
        /// Falls along a cosine: half a wave, or `cycles` waves.
        Cosine = "cosine",
        /// Falls along half a cosine, `cycles` times.
        CosineWithRestarts = "cosine_with_restarts",
        /// Falls as a power of the steps that are left.
        Polynomial = "polynomial",
        /// Warm-up, stable, decay: stays at the peak and falls in the last `cooldown_steps`.
        Wsd = "wsd",
        /// PyTorch's `OneCycleLR`: rises from `warmup_lr` to the peak, then falls to the end.
        OneCycle = "one_cycle",
        /// As `OneCycle`, but falls to `warmup_lr` as it rose, and then to the end.
        OneCycleThreePhase = "one_cycle_three_phase",
        /// Rises from `warmup_lr` to the peak, falls to the end in `cooldown_steps`, and stays there.
        Bump = "bump",
    }
}

impl LrSchedule {
    /// Returns whether the schedule is one of PyTorch's `OneCycleLR`.
    pub fn is_one_cycle(self) -> bool {
        matches!(self, LrSchedule::OneCycle | LrSchedule::OneCycleThreePhase)
    }

    /// Returns whether the schedule has a part of `cooldown_steps`.
    pub fn has_cooldown(self) -> bool {
        matches!(self, LrSchedule::Wsd | LrSchedule::Bump)
    }
}

words! {
    /// The rate of each step of a warm-up of `W` steps, for step `k` from 0, as a share of the peak.
    pub enum Warmup {
        /// `(k + 1) / W`, as in ttt-video-dit.
        TttVideo = "ttt_video",
        /// `k / W`, as in diffusers: the first step has rate 0.
        Diffusers = "diffusers",
        /// `(k + 1) / (W + 1)`, as in Open-Sora.
        OpenSora = "open_sora",
    }
}

words! {
    /// The curve between two rates.
    pub enum Anneal {
        /// Half a cosine.
        Cosine = "cosine",
        /// A straight line.
        Linear = "linear",
        /// One minus the square root of the progress.
        Sqrt = "sqrt",
    }
}

impl Anneal {
    /// Returns the value at `done` (0 to 1) of the way from `from` to `to`.
    fn between(self, from: f64, to: f64, done: f64) -> f64 {
        let left = match self {
            Anneal::Cosine => 0.5 * (1.0 + (PI * done).cos()),
            Anneal::Linear => 1.0 - done,
            Anneal::Sqrt => 1.0 - done.sqrt(),
        };
        to + (from - to) * left
    }
}

words! {
    /// How the limit of the gradient's norm depends on the step and the norm.
    pub enum ClipRule {
        /// The limit is always `clip_norm`.
        Constant = "constant",
        /// VideoX-Fun's rule: the limit falls to `clip_norm`, and gradients far above it are clipped below it.
        Decaying = "decaying",
    }
}

/// A gradient norm above this multiple of the limit is abnormal, in VideoX-Fun.
const ABNORMAL: f64 = 5.0;
/// The largest divisor of the limit for an abnormal gradient.
const MOST_ABNORMAL: f64 = 10.0;

impl Optimizer {
    /// Returns the learning rate of one step by a schedule with this peak.
    ///
    /// * `step`: the step about to be applied, counted from 0.
    /// * `total`: the steps of the whole run. After them the rate stays at its end.
    ///
    /// Source: diffusers 0.42.1 `optimization.py`, transformers 5.23 `optimization.py` (WSD), `torch.optim.lr_scheduler.OneCycleLR`,
    /// ttt-video-dit `optimizers.py`, and the schedule `1cycle` of Lambda's Open-Sora (bump).
    pub fn lr_at(&self, schedule: LrSchedule, peak: f64, step: u64, total: u64) -> f64 {
        let (step, total) = self.in_schedule(step, total);
        let (warmup, end) = (self.warmup_steps, self.lr_end);
        match schedule {
            LrSchedule::OneCycle | LrSchedule::OneCycleThreePhase => {
                self.in_cycle(schedule, [self.warmup_lr, peak, end], step, total)
            }
            LrSchedule::Bump if step < warmup => self.anneal.between(self.warmup_lr, peak, step as f64 / warmup as f64),
            LrSchedule::Bump => self.anneal.between(peak, end, share(step - warmup, self.cooldown_steps)),
            _ if step < warmup => self.rate_in_warmup(peak, step),
            _ => {
                let left = self.peak_share(schedule, step, total);
                peak * left + end * (1.0 - left)
            }
        }
    }

    /// Returns the step and the number of steps, counted from the beginning of the schedule.
    fn in_schedule(&self, step: u64, total: u64) -> (u64, u64) {
        let steps = match self.schedule_steps {
            0 => total.saturating_sub(self.schedule_start),
            steps => steps,
        };
        (step.saturating_sub(self.schedule_start), steps)
    }

    fn rate_in_warmup(&self, peak: f64, step: u64) -> f64 {
        let (done, of) = match self.warmup {
            Warmup::TttVideo => (step + 1, self.warmup_steps),
            Warmup::Diffusers => (step, self.warmup_steps),
            Warmup::OpenSora => (step + 1, self.warmup_steps + 1),
        };
        self.warmup_lr + (peak - self.warmup_lr) * done as f64 / of as f64
    }

    /// Returns the share of the peak in the rate of a step after the warm-up; the rest is the end.
    fn peak_share(&self, schedule: LrSchedule, step: u64, total: u64) -> f64 {
        let done = share(step - self.warmup_steps, total.saturating_sub(self.warmup_steps));
        let cycles = |default: f64| if self.cycles == 0.0 { default } else { self.cycles };
        match schedule {
            LrSchedule::Linear => 1.0 - done,
            LrSchedule::Cosine => 0.5 * (1.0 + (PI * 2.0 * cycles(0.5) * done).cos()),
            LrSchedule::CosineWithRestarts if done >= 1.0 => 0.0,
            LrSchedule::CosineWithRestarts => 0.5 * (1.0 + (PI * (cycles(1.0) * done).fract()).cos()),
            LrSchedule::Polynomial => (1.0 - done).powf(self.power),
            LrSchedule::Wsd => {
                let stable = total.saturating_sub(self.cooldown_steps);
                let cooling = step.checked_sub(stable).map_or(0.0, |into| share(into, self.cooldown_steps));
                self.anneal.between(1.0, 0.0, cooling)
            }
            LrSchedule::Constant | LrSchedule::Bump | LrSchedule::OneCycle | LrSchedule::OneCycleThreePhase => 1.0,
        }
    }

    /// Returns the value of a step in a cycle from `low` to `high` and, at its end, to `last`.
    fn in_cycle(&self, schedule: LrSchedule, [low, high, last]: [f64; 3], step: u64, total: u64) -> f64 {
        let (step, up) = (step as f64, self.warmup_steps.saturating_sub(1) as f64);
        let over = total as f64 - 1.0;
        let phases: &[(f64, f64, f64)] = match schedule {
            LrSchedule::OneCycleThreePhase => &[(up, low, high), (2.0 * up, high, low), (over, low, last)],
            _ => &[(up, low, high), (over, high, last)],
        };
        let mut start = 0.0;
        for &(end, from, to) in phases {
            if step <= end {
                let done = if end > start { (step - start) / (end - start) } else { 1.0 };
                return self.anneal.between(from, to, done);
            }
            start = end;
        }
        last
    }

    /// Returns the decay rate of the first moment in one step. It falls from `beta1` to `beta1_low` while a one-cycle schedule
    /// rises, and back.
    pub fn beta1_at(&self, step: u64, total: u64) -> f64 {
        if self.beta1_low == 0.0 {
            return self.beta1;
        }
        let (step, total) = self.in_schedule(step, total);
        self.in_cycle(self.schedule, [self.beta1, self.beta1_low, self.beta1], step, total)
    }

    /// Returns the limit of the gradient's norm in one step, counted from 0; 0: no limit.
    ///
    /// Source: VideoX-Fun `scripts/cogvideox_fun/train.py`.
    pub fn clip_limit(&self, step: u64, norm: f64) -> f64 {
        let (limit, steps) = (self.clip_norm, self.clip_start_steps);
        if self.clip_rule == ClipRule::Constant || limit == 0.0 {
            return limit;
        }
        if step < steps {
            let first = limit * self.clip_start_ratio;
            return first + (limit - first) * step as f64 / steps as f64;
        }
        let ratio = norm / limit;
        if step > steps && ratio > ABNORMAL { limit / ratio.min(MOST_ABNORMAL) } else { limit }
    }
}

/// Returns `part / whole`, at most 1; 1 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { (part as f64 / whole as f64).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A warm-up of 5 steps out of 20, from the log of the reference program: step, linear from 1e-3, cosine from 3e-3,
    /// both to 1e-4.
    const LOGGED: [(u64, f64, f64); 9] = [
        (0, 2e-4, 6e-4),
        (3, 8e-4, 2.4e-3),
        (4, 1e-3, 3e-3),
        (5, 1e-3, 3e-3),
        (6, 9.4e-4, 0.0029683140210640183),
        (10, 7e-4, 0.002275),
        (13, 5.2e-4, 0.001398433728261903),
        (18, 2.2e-4, 0.0002253590864182286),
        (19, 1.6e-4, 0.00013168597893598177),
    ];

    fn optimizer(warmup_steps: u64, lr_end: f64) -> Optimizer {
        Optimizer { warmup_steps, lr_end, ..Optimizer::default() }
    }

    #[test]
    fn learning_rates_match_the_reference() {
        let o = optimizer(5, 1e-4);
        for (step, linear, cosine) in LOGGED {
            let close = |ours: f64, theirs: f64| assert!((ours - theirs).abs() < 1e-15, "step {step}: {ours} {theirs}");
            close(o.lr_at(LrSchedule::Linear, 1e-3, step, 20), linear);
            close(o.lr_at(LrSchedule::Cosine, 3e-3, step, 20), cosine);
        }
    }

    #[test]
    fn the_learning_rate_stays_at_its_end_after_the_last_step() {
        let o = Optimizer { cooldown_steps: 5, cycles: 1.0, ..optimizer(5, 1e-4) };
        let falling = [LrSchedule::Linear, LrSchedule::CosineWithRestarts, LrSchedule::Polynomial, LrSchedule::Wsd];
        for step in [20, 21, 30, 35, 1_000_000] {
            for schedule in falling.into_iter().chain([LrSchedule::OneCycle, LrSchedule::Bump]) {
                assert_eq!(o.lr_at(schedule, 1e-3, step, 20), 1e-4, "{schedule:?}");
            }
            assert_eq!(optimizer(5, 1e-4).lr_at(LrSchedule::Cosine, 1e-3, step, 20), 1e-4);
            assert_eq!(o.lr_at(LrSchedule::Constant, 1e-3, step, 20), 1e-3);
        }
    }

    #[test]
    fn a_schedule_can_be_shorter_than_the_run_or_begin_later() {
        let o = |schedule_steps, schedule_start| Optimizer { schedule_steps, schedule_start, ..optimizer(5, 1e-4) };
        let rates = |o: Optimizer, total| (0..40).map(move |step| o.lr_at(LrSchedule::Cosine, 3e-3, step, total));
        let (short, long): (Vec<_>, Vec<_>) = (rates(o(0, 0), 20).collect(), rates(o(20, 0), 40).collect());
        assert_eq!(short, long, "a longer run keeps the schedule of 20 steps");
        let restarted: Vec<f64> = rates(o(0, 20), 40).collect();
        assert_eq!(restarted[20..], short[..20], "a restarted one has its warm-up and its fall again");
        let cycle = |o: Optimizer, step, total| {
            let o = Optimizer { schedule: LrSchedule::OneCycle, beta1_low: 0.85, ..o };
            o.beta1_at(step, total)
        };
        assert_eq!(cycle(o(20, 0), 12, 40), cycle(o(0, 0), 12, 20));
    }

    #[test]
    fn a_run_of_only_warmup_rises_to_its_peak() {
        let rates: Vec<_> = (0..4).map(|step| optimizer(4, 0.0).lr_at(LrSchedule::Cosine, 1.0, step, 4)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn without_warmup_the_first_step_has_the_peak_rate() {
        assert_eq!(optimizer(0, 1e-4).lr_at(LrSchedule::Linear, 1e-3, 0, 20), 1e-3);
        assert_eq!(optimizer(0, 1e-4).lr_at(LrSchedule::OneCycle, 1e-3, 0, 20), 1e-3);
    }

    #[test]
    fn each_form_of_warmup_has_the_rates_of_its_program() {
        let rates = |warmup| {
            let o = Optimizer { warmup, warmup_lr: 0.2, ..optimizer(4, 0.0) };
            [0, 3, 4].map(|step| o.lr_at(LrSchedule::Constant, 1.0, step, 20))
        };
        assert_eq!(rates(Warmup::TttVideo), [0.4, 1.0, 1.0]);
        assert_eq!(rates(Warmup::Diffusers), [0.2, 0.8, 1.0]);
        assert_eq!(rates(Warmup::OpenSora), [0.2 + 0.8 / 5.0, 0.2 + 0.8 * 4.0 / 5.0, 1.0]);
    }

    /// Lambda's stage: 400 steps up, 400 down, then constant.
    #[test]
    fn a_bump_rises_falls_and_stays() {
        let o = Optimizer { warmup_lr: 1e-6, cooldown_steps: 400, ..optimizer(400, 1e-5) };
        let at = |step| o.lr_at(LrSchedule::Bump, 1e-4, step, 100_000);
        let close = |ours: f64, wanted: f64| assert!((ours / wanted - 1.0).abs() < 1e-12, "{ours} {wanted}");
        close(at(0), 1e-6);
        close(at(200), (1e-6 + 1e-4) / 2.0);
        close(at(400), 1e-4);
        close(at(500), 1e-5 + (1e-4 - 1e-5) * 0.5 * (1.0 + (PI / 4.0).cos()));
        assert_eq!((at(800), at(50_000)), (1e-5, 1e-5));
        let line = Optimizer { anneal: Anneal::Linear, ..o };
        close(line.lr_at(LrSchedule::Bump, 1e-4, 500, 100_000), 1e-4 - 9e-5 / 4.0);
    }

    #[test]
    fn a_decaying_limit_starts_high_and_clips_abnormal_gradients_below_it() {
        let o = Optimizer {
            clip_rule: ClipRule::Decaying,
            clip_norm: 0.05,
            clip_start_ratio: 5.0,
            clip_start_steps: 1000,
            ..Optimizer::default()
        };
        let close = |ours: f64, wanted: f64| assert!((ours - wanted).abs() < 1e-15, "{ours} {wanted}");
        close(o.clip_limit(0, 9.0), 0.25);
        close(o.clip_limit(500, 9.0), 0.15);
        close(o.clip_limit(1000, 9.0), 0.05);
        // Abnormal above five times the limit, from the step after the start.
        close(o.clip_limit(1001, 0.25), 0.05);
        close(o.clip_limit(1001, 0.3), 0.05 / 6.0);
        close(o.clip_limit(1001, 9.0), 0.05 / 10.0);
        assert_eq!(Optimizer { clip_norm: 0.0, ..o.clone() }.clip_limit(1001, 9.0), 0.0);
        assert_eq!(Optimizer { clip_rule: ClipRule::Constant, ..o }.clip_limit(1001, 9.0), 0.05);
    }
}
