//! One chain of the local search: late acceptance hill climbing (Burke and Bykov), again and again.

use rand_pcg::Pcg64;

use crate::budget::Budget;
use crate::search::allocation::local_search::candidate::Candidate;
use crate::search::allocation::local_search::objective::{Construction, Key};
use crate::search::context::stream_of;
use crate::time::NEVER;

/// Chains side by side: always as many, so that threads change nothing but the time.
pub const CHAINS: u64 = 2;
/// Length of the first run's history, which every other run doubles, and how often at most.
const FIRST_HISTORY: usize = 8;
const MOST_DOUBLINGS: u32 = 6;
/// A run is over after so many changes for each entry of its history, and each node, that found nothing better.
const PATIENCE: usize = 8;
const PATIENCE_OF_NODE: usize = 4;
/// Changes of the best allocation with which a run near it begins.
const KICKS: usize = 4;
/// Draws without a change that is allowed after which a step ends.
const MOST_DRAWS: usize = 100;
/// Allocations that a chain gives after a round.
const MOST_SEEN: usize = 16;

/// See the [module](self).
pub struct Chain<'a> {
    construction: Construction<'a>,
    first: Candidate,
    number: u64,
    rng: Pcg64,
    /// None: a run is to begin.
    run: Option<Run>,
    runs: u32,
    work: u64,
    seen: Vec<(Key, Candidate)>,
}

/// One run: a step is accepted where it is no worse than the last one, or than the one some steps ago.
struct Run {
    current: Candidate,
    key: Key,
    best: Key,
    history: Vec<Key>,
    steps: usize,
    /// Steps since the best one.
    idle: usize,
    /// Whether nodes may join stages and leave them, where they may at all. To leave out a node gains at once what it
    /// may take long to gain by another exchange, so that is tried near the best allocation alone.
    joins: bool,
}

impl<'a> Chain<'a> {
    /// Nothing done; chain 0 begins with `first` itself.
    pub fn new(construction: Construction<'a>, first: &Candidate, number: u64, seed: u64) -> Self {
        let rng = stream_of(seed, u64::MAX - number);
        Self { construction, first: first.clone(), number, rng, run: None, runs: 0, work: 0, seen: Vec::new() }
    }

    /// Search steps so far.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Good allocations of the last round.
    pub fn seen(&mut self) -> Vec<(Key, Candidate)> {
        std::mem::take(&mut self.seen)
    }

    /// Goes on for so much work; a run that begins may begin near `best`.
    pub fn advance(&mut self, best: Option<&Candidate>, work: u64, budget: &Budget) {
        let end = self.work + work;
        while self.work < end && !budget.is_over() {
            let run = match self.run.take() {
                Some(run) => run,
                None => self.begin(best, budget),
            };
            if !self.step(run, budget) {
                return;
            }
        }
    }

    /// The first run of all begins with the first allocation, every second one near the best, the others anywhere.
    fn begin(&mut self, best: Option<&Candidate>, budget: &Budget) -> Run {
        let is_near = (u64::from(self.runs) + self.number).is_multiple_of(2);
        let (current, joins) = match best {
            _ if self.runs == 0 && self.number == 0 => (self.first.clone(), false),
            Some(best) if is_near => {
                let mut current = best.clone();
                for _ in 0..KICKS {
                    current = current.changed(true, &mut self.rng).unwrap_or(current);
                }
                (current, true)
            }
            _ => (self.first.scrambled(&mut self.rng), false),
        };
        let doublings = (self.runs / 2).min(MOST_DOUBLINGS);
        self.runs += 1;
        let key = self.judge(&current, budget);
        Run { current, key, best: key, history: vec![key; FIRST_HISTORY << doublings], steps: 0, idle: 0, joins }
    }

    /// One change; whether there was one to make.
    fn step(&mut self, mut run: Run, budget: &Budget) -> bool {
        let Some(next) = (0..MOST_DRAWS).find_map(|_| run.current.changed(run.joins, &mut self.rng)) else {
            return false;
        };
        let key = self.judge(&next, budget);
        let late = run.steps % run.history.len();
        if key <= run.key || key <= run.history[late] {
            (run.current, run.key) = (next, key);
        }
        run.history[late] = run.history[late].min(run.key);
        run.steps += 1;
        run.idle += 1;
        if run.key < run.best {
            (run.best, run.idle) = (run.key, 0);
        }
        let patience = PATIENCE * run.history.len() + PATIENCE_OF_NODE * self.first.instance().node_count();
        if run.idle <= patience {
            self.run = Some(run);
        }
        true
    }

    fn judge(&mut self, candidate: &Candidate, budget: &Budget) -> Key {
        let judged = self.construction.judge(candidate, self.sample(), budget);
        // At least one, so that a round ends.
        self.work += judged.work.max(1);
        let is_good = self.seen.len() < MOST_SEEN || self.seen.last().is_some_and(|(worst, _)| judged.key < *worst);
        if judged.key.0 < NEVER && is_good {
            let index = self.seen.partition_point(|(key, _)| *key <= judged.key);
            self.seen.insert(index, (judged.key, candidate.clone()));
            self.seen.truncate(MOST_SEEN);
        }
        judged.key
    }

    /// Which random routes a run is judged by: others in every run, so that no allocation is only good for some.
    fn sample(&self) -> u64 {
        self.number + u64::from(self.runs) * CHAINS
    }
}
