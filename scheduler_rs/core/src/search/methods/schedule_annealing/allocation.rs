//! Changes of the allocation: two or three nodes are exchanged, a node leaves its stage or joins one. Tasks stay
//! in their sequence as far as they can.

use rand::RngExt;
use smallvec::SmallVec;

use crate::problem::{Instance, NO_STAGE};
use crate::search::methods::routes::{Change, Path};
use crate::search::methods::schedule_annealing::ScheduleAnnealing;

/// How often three nodes are exchanged rather than two.
const CYCLES: f64 = 0.15;
/// How often nodes of one stage are exchanged: their routes do.
const INSIDE: f64 = 0.1;
/// How often a node joins or leaves a stage, where it may.
const JOINS: f64 = 0.05;

/// Places whose nodes change, one pair after the other.
type Pairs = SmallVec<[(usize, usize); 2]>;

impl ScheduleAnnealing {
    /// Tries another allocation.
    pub(super) fn try_allocation(&mut self) {
        let is_open = self.joins && self.placement.as_ref().is_some_and(|placement| placement.scope().unused);
        if is_open && self.rng.random_bool(JOINS) {
            self.try_join_or_leave();
        } else {
            self.try_exchange_of_nodes();
        }
    }

    fn try_exchange_of_nodes(&mut self) {
        let Some(pairs) = self.draw_exchange() else { return };
        self.exchange(pairs.iter());
        if self.is_allowed(&pairs) {
            self.write_all();
            self.changed.clone_from(&self.sequence);
            if self.judge() {
                return;
            }
        }
        self.exchange(pairs.iter().rev());
        self.write_all();
    }

    /// None where the draw led nowhere.
    fn draw_exchange(&mut self) -> Option<Pairs> {
        let instance = &self.owned.instance;
        let count = instance.node_count();
        let scope = *self.placement.as_ref()?.scope();
        let a = self.rng.random_range(0..count);
        let b = if self.rng.random_bool(INSIDE) {
            let members = instance.members.get(instance.stage_of[a])?;
            members[self.rng.random_range(0..members.len())]
        } else {
            self.rng.random_range(0..count)
        };
        let is_possible = |x: usize, y: usize| {
            let stages = [instance.stage_of[x], instance.stage_of[y]];
            let is_open = |stage: &usize| (scope.unused || *stage != NO_STAGE) && (scope.sources || *stage != 0);
            x != y && stages.iter().all(is_open) && stages != [NO_STAGE; 2] && !instance.is_alike(x, y)
        };
        if !is_possible(a, b) {
            return None;
        }
        let mut pairs = Pairs::from_iter([(a, b)]);
        if instance.stage_of[a] != instance.stage_of[b] && self.rng.random_bool(CYCLES) {
            let c = self.rng.random_range(0..count);
            if c == a || !is_possible(b, c) {
                return None;
            }
            pairs.push((b, c));
        }
        Some(pairs)
    }

    fn exchange<'a>(&mut self, pairs: impl Iterator<Item = &'a (usize, usize)>) {
        let Some(placement) = &mut self.placement else { return };
        for (a, b) in pairs {
            placement.swap(&mut self.owned.instance, *a, *b);
        }
    }

    /// Whether memory and distances allow what an exchange made.
    fn is_allowed(&self, pairs: &Pairs) -> bool {
        let instance = &self.owned.instance;
        let is_close = |stage: usize| self.placement.as_ref().is_some_and(|p| p.is_close(instance, stage));
        pairs.iter().flat_map(|(a, b)| [*a, *b]).all(|position| {
            instance.memory[position] > 0
                && self.routes.has_room(self.owned.view(), position)
                && is_close(instance.stage_of[position])
        })
    }

    /// A node leaves its stage for none, and others of the stage take its routes; or it joins a stage, and takes some of
    /// theirs. Stage 0 stays as large as it is.
    fn try_join_or_leave(&mut self) {
        let position = self.rng.random_range(0..self.owned.instance.node_count());
        let instance = &self.owned.instance;
        let joins = instance.stage_of[position] == NO_STAGE;
        let stage = match instance.stage_of[position] {
            NO_STAGE => instance.present[self.rng.random_range(0..instance.present.len())],
            stage => stage,
        };
        let Some(placement) = self.placement.clone().filter(|p| !joins || p.may_grow(instance, stage)) else { return };
        let others: Vec<usize> = instance.members[stage].iter().copied().filter(|other| *other != position).collect();
        if stage == 0 || others.is_empty() {
            return;
        }
        let saved = instance.clone();
        let change = if joins { self.taken(position, &others) } else { self.given(position, &others) };
        // Nobody's route may lead over a node of no stage.
        let mut is_possible = !joins || self.switch(position, stage, stage);
        let back = if is_possible { self.routes.apply(self.owned.view(), change) } else { None };
        is_possible = is_possible && back.is_some() && (joins || self.switch(position, NO_STAGE, stage));
        if let Some(back) = back.as_ref().filter(|_| is_possible) {
            self.reroute(back);
            self.write_all();
            if self.judge() {
                return;
            }
        }
        if !joins {
            self.owned.instance = saved.clone();
        }
        if let Some(back) = back {
            self.routes.undo(self.owned.view(), back);
        }
        self.owned.instance = saved;
        self.placement = Some(placement);
        self.write_all();
    }

    /// Has the node at a position serve `to`; whether memory and distances in `stage` allow it.
    fn switch(&mut self, position: usize, to: usize, stage: usize) -> bool {
        let Some(placement) = &mut self.placement else { return false };
        let instance: &mut Instance = &mut self.owned.instance;
        placement.switch(instance, position, to) && placement.is_close(instance, stage)
    }

    /// The routes over a node, led over `others`.
    fn given(&mut self, position: usize, others: &[usize]) -> Change {
        let mut change = Change::new();
        for route in self.routes.users(position) {
            let other = others[self.rng.random_range(0..others.len())];
            change.push((*route, led_over(self.routes.path(*route as usize), position, other)));
        }
        change
    }

    /// A fair share of the routes over `others`, led over the node at `position`.
    fn taken(&mut self, position: usize, others: &[usize]) -> Change {
        let share = 1.0 / (others.len() + 1) as f64;
        let mut change = Change::new();
        for other in others {
            for route in self.routes.users(*other) {
                if self.rng.random_bool(share) {
                    change.push((*route, led_over(self.routes.path(*route as usize), *other, position)));
                }
            }
        }
        change
    }

    /// Hands the allocation and all paths to the decoder.
    pub(super) fn write_all(&mut self) {
        self.decoder.set_allocation(&self.owned.instance);
        for route in 0..self.owned.tasks.len() {
            self.write(route);
        }
        self.placed += self.sequence.len() as u64;
    }
}

/// A path with one node in another one's position.
fn led_over(path: &Path, old: usize, new: usize) -> Path {
    path.iter().map(|node| if *node as usize == old { new as u32 } else { *node }).collect()
}
