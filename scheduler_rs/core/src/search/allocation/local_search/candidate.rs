//! An allocation as the local search changes it.

use rand::RngExt;
use rand_pcg::Pcg64;

use crate::allocate::joint::Placement;
use crate::error::Result;
use crate::problem::{Instance, NO_STAGE, Problem, Source};
use crate::route::route_tasks;

/// How often a change is another than an exchange of nodes, where it may be.
const OTHERS: f64 = 0.3;
/// How often it is a node that joins a stage or leaves it, where that is all that may be.
const JOINS: f64 = 0.15;
/// How often three nodes are exchanged rather than two.
const CYCLES: f64 = 0.15;
/// How often nodes of one stage are exchanged: the ring of its all-reduce changes.
const INSIDE: f64 = 0.1;

/// Which node stands at which position of an instance.
#[derive(Clone, Debug)]
pub struct Candidate {
    placement: Placement,
    instance: Instance,
}

impl Candidate {
    /// The allocation of `placement`.
    pub fn new(placement: Placement) -> Self {
        let instance = placement.instance();
        Self { placement, instance }
    }

    /// The instance, over positions.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The question for this allocation, over nodes.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn problem(&self) -> Result<Problem> {
        self.placement.problem(&self.instance, &route_tasks(&self.instance))
    }

    /// Whether the same nodes serve the same stages with the same layers and microbatches; rings may differ.
    pub fn is_same(&self, other: &Self) -> bool {
        let (own, its) = (&self.instance, &other.instance);
        self.placement.layers() == other.placement.layers()
            && own.members.iter().map(Vec::len).eq(its.members.iter().map(Vec::len))
            && self.placement.stages(own).into_iter().zip(self.stages_of(other)).all(|(mut a, mut b)| {
                a.sort_unstable();
                b.sort_unstable();
                a == b
            })
            && self.microbatches() == other.microbatches()
    }

    fn stages_of(&self, other: &Self) -> Vec<Vec<usize>> {
        other.placement.stages(&other.instance)
    }

    /// Microbatches of each source by node.
    fn microbatches(&self) -> Vec<(usize, usize)> {
        let mut counts: Vec<_> =
            self.instance.sources.iter().map(|s| (self.placement.node_at(s.node), s.microbatches)).collect();
        counts.sort_unstable();
        counts
    }

    /// Another allocation, by one random change; none where the draw led nowhere or to what is not allowed. Nodes join
    /// stages and leave them only where `joins` says so too.
    pub fn changed(&self, joins: bool, rng: &mut Pcg64) -> Option<Self> {
        let scope = *self.placement.scope();
        let mut other = self.clone();
        let often = if scope.layers > 0 {
            OTHERS
        } else if scope.unused && joins {
            JOINS
        } else {
            0.0
        };
        let done = if rng.random_bool(often) {
            match rng.random_range(0..8) {
                0..4 if scope.layers > 0 => other.shift_layer(rng),
                4..6 if scope.layers > 0 => other.hand_over_route(rng),
                _ if scope.unused && joins => other.join_or_leave(rng),
                6 if scope.layers > 0 => other.hand_over_route(rng),
                _ => false,
            }
        } else {
            other.exchange(rng)
        };
        done.then_some(other)
    }

    /// An allocation far from this one, of the same sizes: as many nodes serve as before, since few that could be left
    /// out are worth it.
    pub fn scrambled(&self, rng: &mut Pcg64) -> Self {
        let mut current = self.clone();
        for _ in 0..2 * self.instance.node_count() {
            let mut other = current.clone();
            if other.exchange(rng) {
                current = other;
            }
        }
        current
    }

    /// Exchanges two or three nodes.
    fn exchange(&mut self, rng: &mut Pcg64) -> bool {
        let count = self.instance.node_count();
        let a = rng.random_range(0..count);
        let stage = self.instance.stage_of[a];
        let b = match self.instance.members.get(stage) {
            Some(members) if rng.random_bool(INSIDE) => members[rng.random_range(0..members.len())],
            _ => rng.random_range(0..count),
        };
        let is_three = self.instance.stage_of[b] != stage && rng.random_bool(CYCLES);
        let c = is_three.then(|| rng.random_range(0..count)).filter(|c| *c != a && *c != b);
        self.swap(a, b) && c.is_none_or(|c| self.swap(b, c))
    }

    fn swap(&mut self, a: usize, b: usize) -> bool {
        let (left, right) = (self.instance.stage_of[a], self.instance.stage_of[b]);
        // Sources that are given keep their microbatches too.
        let is_fixed = !self.placement.scope().sources && (left == 0 || right == 0);
        // A node that serves no stage may replace another one, where nodes may be left out.
        let is_open = |stage: usize| stage != NO_STAGE || (self.placement.scope().unused && left != right);
        if a == b || is_fixed || !is_open(left) || !is_open(right) || self.instance.is_alike(a, b) {
            return false;
        }
        self.placement.swap(&mut self.instance, a, b);
        let fits = |position: usize, stage: usize| {
            self.instance.memory[position] > 0 && self.placement.is_close(&self.instance, stage)
        };
        fits(a, left) && fits(b, right)
    }

    /// A stage hands a layer on to another.
    fn shift_layer(&mut self, rng: &mut Pcg64) -> bool {
        let present = &self.instance.present;
        let from = present[rng.random_range(0..present.len())];
        let to = present[rng.random_range(0..present.len())];
        from != to && self.placement.shift_layer(&mut self.instance, from, to)
    }

    /// A source hands the microbatches of one route on to another source.
    fn hand_over_route(&mut self, rng: &mut Pcg64) -> bool {
        let members = &self.instance.members[0];
        let from = members[rng.random_range(0..members.len())];
        let to = members[rng.random_range(0..members.len())];
        let moved = self.instance.rules.waves as usize;
        let started = |position: usize| {
            self.instance.sources.iter().find(|s| s.node == position).map_or(0, |source| source.microbatches)
        };
        if from == to || started(from) < moved {
            return false;
        }
        let source = |position: &usize| {
            let own = started(*position);
            let microbatches = match *position {
                position if position == from => own - moved,
                position if position == to => own + moved,
                _ => own,
            };
            Source { node: *position, microbatches, class: 0 }
        };
        self.instance.sources =
            self.instance.members[0].iter().map(source).filter(|source| source.microbatches > 0).collect();
        true
    }

    /// A node leaves its stage for none, or joins one; stage 0 stays as large as it is.
    fn join_or_leave(&mut self, rng: &mut Pcg64) -> bool {
        let position = rng.random_range(0..self.instance.node_count());
        let from = self.instance.stage_of[position];
        let to = match from {
            NO_STAGE => self.instance.present[rng.random_range(0..self.instance.present.len())],
            _ => NO_STAGE,
        };
        let may = match (from, to) {
            (0, _) | (_, 0) => false,
            (NO_STAGE, to) => self.placement.may_grow(&self.instance, to),
            (from, _) => self.instance.members[from].len() > 1,
        };
        may && self.placement.switch(&mut self.instance, position, to) && self.placement.is_close(&self.instance, to)
    }
}
