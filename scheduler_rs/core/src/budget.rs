//! How long a search may go on, and how it reports what it has found so far.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Limits of one call and the flag that ends it early. Polled by every loop that can run long.
#[derive(Debug)]
pub struct Budget {
    started: Instant,
    time_limit: Option<Duration>,
    deadline: Option<Instant>,
    /// Search steps (labels made and tasks simulated) after which no new round begins.
    pub work_limit: Option<u64>,
    /// Nanoseconds after the start at which the present part of the search began.
    part: AtomicU64,
    /// Whether it is that of a single step of another search, whose work is little and is kept to.
    is_step: bool,
    /// Shared with the budgets of single steps.
    cancelled: Arc<AtomicBool>,
    work: Arc<AtomicU64>,
    progress: Arc<Mutex<Progress>>,
}

/// The search as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Seconds since the start.
    pub elapsed_s: f64,
    /// Iteration of the best plan so far; none yet: infinite.
    pub incumbent_s: f64,
    /// Lower bound.
    pub bound_s: f64,
    /// Search steps done.
    pub work: u64,
}

impl Budget {
    /// Starts the clock.
    #[must_use]
    pub fn new(time_limit: Option<Duration>, work_limit: Option<u64>) -> Self {
        let started = Instant::now();
        Self {
            started,
            time_limit,
            deadline: time_limit.and_then(|limit| started.checked_add(limit)),
            work_limit,
            part: AtomicU64::new(0),
            is_step: false,
            cancelled: Arc::new(AtomicBool::new(false)),
            work: Arc::new(AtomicU64::new(0)),
            progress: Arc::new(Mutex::new(Progress { incumbent_s: f64::INFINITY, ..Progress::default() })),
        }
    }

    /// A budget of its own for a step of the search: so much work, and no longer than this one.
    #[must_use]
    pub fn within(&self, work_limit: u64) -> Self {
        let left = self.time_limit.map(|limit| limit.saturating_sub(self.started.elapsed()));
        Self { is_step: true, ..self.apart(left, Some(work_limit)) }
    }

    /// A budget with limits and a clock of its own, which ends early where this one does.
    #[must_use]
    pub fn apart(&self, time_limit: Option<Duration>, work_limit: Option<u64>) -> Self {
        Self { cancelled: Arc::clone(&self.cancelled), ..Self::new(time_limit, work_limit) }
    }

    /// Work of a round that usually has `usual`: a step of another search has no more than its limit.
    #[must_use]
    pub fn round_work(&self, usual: u64) -> u64 {
        self.work_limit.filter(|_| self.is_step).map_or(usual, |limit| limit.min(usual))
    }

    /// A budget for one part of the search that reports as this one does: a share of the time that is left, and of
    /// the work where `spent` is done already.
    #[must_use]
    pub fn share(&self, share: f64, spent: u64) -> Self {
        let elapsed = self.started.elapsed();
        let time_limit = self.time_limit.map(|limit| elapsed + limit.saturating_sub(elapsed).mul_f64(share));
        Self {
            started: self.started,
            time_limit,
            deadline: time_limit.and_then(|limit| self.started.checked_add(limit)),
            work_limit: self.work_limit.map(|limit| (limit.saturating_sub(spent) as f64 * share) as u64),
            is_step: self.is_step,
            part: AtomicU64::new(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)),
            cancelled: Arc::clone(&self.cancelled),
            work: Arc::clone(&self.work),
            progress: Arc::clone(&self.progress),
        }
    }

    /// Asks the search to stop; safe from any thread.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the time is over or somebody has cancelled.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_cancelled() || self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    /// The time that it has, where that ends.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Begins another part of the search: what it has is the time that is left.
    pub fn begin_part(&self) {
        self.part.store(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether more than this share of the time is gone that this part of the search began with.
    #[must_use]
    pub fn is_past(&self, share: f64) -> bool {
        self.gone() > share
    }

    /// Share of the time that is gone of what this part of the search began with; 0 where there is no limit.
    #[must_use]
    pub fn gone(&self) -> f64 {
        let part = Duration::from_nanos(self.part.load(Ordering::Relaxed));
        let of = |limit: Duration| {
            let gone = self.started.elapsed().saturating_sub(part);
            gone.as_secs_f64() / limit.saturating_sub(part).as_secs_f64().max(f64::MIN_POSITIVE)
        };
        self.time_limit.map_or(0.0, of)
    }

    /// Whether somebody has cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check_cancelled(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Seconds since the start.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Counts search steps, for the display; limits are kept by the rounds.
    pub fn add_work(&self, steps: u64) {
        self.work.fetch_add(steps, Ordering::Relaxed);
    }

    /// Reports what has been found, to whoever watches.
    pub fn report(&self, incumbent_s: f64, bound_s: f64) {
        if let Ok(mut progress) = self.progress.lock() {
            progress.incumbent_s = incumbent_s;
            progress.bound_s = bound_s;
        }
    }

    /// The search as it stands; safe from any thread.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let known = self.progress.lock().map_or(Progress::default(), |p| *p);
        Progress { elapsed_s: self.elapsed_s(), work: self.work.load(Ordering::Relaxed), ..known }
    }
}
