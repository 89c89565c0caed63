//! Changes of the allocation beside those of routes and order: nodes are exchanged, join stages or leave them, stages give
//! layers away, sources give microbatches away.

use rand::RngExt;

use super::allocation_state::OwnedInstance;
use super::chain::AnnealingChain;
use super::estimate::Estimate;
use crate::allocate::joint::Placement;
use crate::problem::{NO_STAGE, Source};
use crate::search::methods::routes::{Change, Routes};

/// How often a change is another than an exchange of nodes, where it may be.
const OTHERS: f64 = 0.3;
/// How often it is a node that joins a stage or leaves it, where that is all that may be; less where nodes are many, as
/// every such change is looked at as a whole.
const JOINS: f64 = 0.15;
const MANY_NODES: f64 = 64.0;
/// How often nodes of one stage are exchanged: their routes are.
const INSIDE: f64 = 0.15;
/// How often three nodes are exchanged rather than two.
const CYCLES: f64 = 0.15;
/// How often one of the nodes is on one of the longest routes.
const CRITICAL: f64 = 0.4;

/// Nodes that are exchanged, one pair after the other.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    first: (usize, usize),
    second: Option<(usize, usize)>,
}

impl Exchange {
    fn pairs(self) -> impl DoubleEndedIterator<Item = (usize, usize)> {
        [Some(self.first), self.second].into_iter().flatten()
    }

    fn positions(self) -> impl Iterator<Item = usize> {
        self.pairs().flat_map(|(a, b)| [a, b])
    }
}

impl AnnealingChain {
    /// Changes the allocation at random, within what is allowed: a run that begins elsewhere ends elsewhere.
    pub fn scramble(&mut self) {
        for _ in 0..2 * self.owned.instance.node_count() {
            if self.draws_other_change() {
                let saved = self.saved();
                if !self.other_change() {
                    self.restore(saved);
                }
                continue;
            }
            let Some(exchange) = self.draw_exchange() else { continue };
            if self.is_allowed(exchange) {
                self.exchange(exchange, false);
            }
        }
        self.write_all();
        self.estimate.rebuild_as_before(self.owned.view(), &self.routes);
    }

    /// Changes the allocation by the estimate alone; the sum may rise by `temperature` as a share of it, about.
    pub fn estimate_allocation_move(&mut self, temperature: f64) {
        let most = self.estimate.sum() * (1.0 - temperature * self.rng.random::<f64>().ln());
        if self.draws_other_change() {
            let saved = self.saved();
            let done = self.other_change();
            if done {
                self.estimate.rebuild_as_before(self.owned.view(), &self.routes);
            }
            if !done || self.estimate.sum() > most {
                self.restore(saved);
            } else {
                self.write_all();
            }
            return;
        }
        let Some(exchange) = self.draw_exchange() else { return };
        if !self.is_allowed(exchange) {
            return;
        }
        if self.changes_sources(exchange) {
            self.exchange(exchange, false);
            let estimate = self.estimate.clone();
            self.estimate.rebuild_as_before(self.owned.view(), &self.routes);
            if self.estimate.sum() > most {
                self.exchange(exchange, true);
                self.estimate = estimate;
            }
            return;
        }
        let positions: Vec<usize> = exchange.positions().collect();
        let mut affected: Vec<u32> =
            positions.iter().flat_map(|position| self.routes.users(*position)).copied().collect();
        affected.sort_unstable();
        affected.dedup();
        let nodes = self.estimate.lift(self.owned.view(), &self.routes, &affected, &positions);
        self.exchange(exchange, false);
        self.estimate.drop(self.owned.view(), &self.routes, &affected, &positions, &nodes);
        if self.estimate.sum() <= most {
            return;
        }
        let nodes = self.estimate.lift(self.owned.view(), &self.routes, &affected, &positions);
        self.exchange(exchange, true);
        self.estimate.drop(self.owned.view(), &self.routes, &affected, &positions, &nodes);
    }

    /// Changes the allocation and simulates what comes of it.
    pub fn try_allocation_move(&mut self, temperature: f64) {
        if self.draws_other_change() {
            let saved = self.saved();
            let mut kept = self.other_change();
            if kept {
                self.write_all();
                kept = self.judge(temperature);
            }
            if !kept {
                self.restore(saved);
                self.write_all();
            }
            return;
        }
        let Some(exchange) = self.draw_exchange() else { return };
        if !self.is_allowed(exchange) {
            return;
        }
        self.exchange(exchange, false);
        if !self.judge(temperature) {
            self.exchange(exchange, true);
        }
    }

    fn draws_other_change(&mut self) -> bool {
        let Some(scope) = self.placement.as_ref().map(|placement| *placement.scope()) else { return false };
        let often = if scope.layers > 0 {
            OTHERS
        } else if scope.unused {
            JOINS * (MANY_NODES / self.owned.instance.node_count() as f64).min(1.0)
        } else {
            return false;
        };
        self.rng.random_bool(often)
    }

    /// Two or three positions whose nodes may be exchanged; none where the draw led nowhere.
    fn draw_exchange(&mut self) -> Option<Exchange> {
        let instance = &self.owned.instance;
        let count = instance.node_count();
        let a = if self.rng.random_bool(CRITICAL) {
            let (routes, owned, estimate) = (&self.routes, &self.owned, &self.estimate);
            let tasks = owned.tasks.len();
            let draws = [0; 3].map(|_| self.rng.random_range(0..tasks));
            let longest = draws.into_iter().max_by_key(|route| (estimate.route_time(owned.view(), *route), *route))?;
            let path = routes.path(longest);
            path[self.rng.random_range(0..path.len())] as usize
        } else {
            self.rng.random_range(0..count)
        };
        let b = if self.rng.random_bool(INSIDE) {
            let members = instance.members.get(instance.stage_of[a])?;
            members[self.rng.random_range(0..members.len())]
        } else {
            self.rng.random_range(0..count)
        };
        // A node that serves no stage may replace another one, where nodes may be left out.
        let unused = self.placement.as_ref().is_some_and(|placement| placement.scope().unused);
        let is_open = |position: usize| unused || instance.stage_of[position] != NO_STAGE;
        let is_new = |x: usize, y: usize| {
            x != y && is_open(y) && (instance.stage_of[x], instance.stage_of[y]) != (NO_STAGE, NO_STAGE)
        };
        if !is_open(a) || !is_new(a, b) || self.is_fixed(a, b) {
            return None;
        }
        let mut second = None;
        if instance.stage_of[a] != instance.stage_of[b] && self.rng.random_bool(CYCLES) {
            let c = self.rng.random_range(0..count);
            if !is_new(a, c) || b == c || self.is_fixed(b, c) {
                return None;
            }
            second = Some((b, c));
        }
        Some(Exchange { first: (a, b), second })
    }

    /// Whether an exchange would change what must stay, or nothing.
    fn is_fixed(&self, a: usize, b: usize) -> bool {
        let instance = &self.owned.instance;
        let (left, right) = (instance.stage_of[a], instance.stage_of[b]);
        let Some(placement) = &self.placement else { return true };
        (!placement.scope().sources && (left == 0 || right == 0)) || instance.is_alike(a, b)
    }

    fn changes_sources(&self, exchange: Exchange) -> bool {
        let instance = &self.owned.instance;
        !instance.allreduce.iter().all(|time| *time == 0) || exchange.positions().any(|p| instance.stage_of[p] == 0)
    }

    fn exchange(&mut self, exchange: Exchange, back: bool) {
        let Some(placement) = &mut self.placement else { return };
        if back {
            exchange.pairs().rev().for_each(|(a, b)| placement.swap(&mut self.owned.instance, a, b));
        } else {
            exchange.pairs().for_each(|(a, b)| placement.swap(&mut self.owned.instance, a, b));
        }
    }

    /// Whether memory and distances allow an exchange.
    fn is_allowed(&mut self, exchange: Exchange) -> bool {
        self.exchange(exchange, false);
        let (instance, placement) = (&self.owned.instance, &self.placement);
        let allowed = exchange.positions().all(|position| {
            instance.memory[position] > 0
                && self.routes.has_room(self.owned.view(), position)
                && placement.as_ref().is_some_and(|placement| placement.is_close(instance, instance.stage_of[position]))
        });
        self.exchange(exchange, true);
        allowed
    }

    /// A stage gives a layer away, a source a route, or a node joins a stage or leaves it; whether that could be done.
    fn other_change(&mut self) -> bool {
        let scope = self.placement.as_ref().map(|placement| *placement.scope()).unwrap_or_default();
        match self.rng.random_range(0..8) {
            0..4 if scope.layers > 0 => self.shift_layer(),
            4..6 if scope.layers > 0 => self.hand_over_route(),
            _ if scope.unused => self.join_or_leave(),
            6 if scope.layers > 0 => self.hand_over_route(),
            _ => false,
        }
    }

    fn shift_layer(&mut self) -> bool {
        let present = &self.owned.instance.present;
        let (from, to) = (self.rng.random_range(0..present.len()), self.rng.random_range(0..present.len()));
        let (from, to) = (present[from], present[to]);
        let Some(placement) = &mut self.placement else { return false };
        from != to && placement.shift_layer(&mut self.owned.instance, from, to) && self.all_have_room(to)
    }

    fn all_have_room(&self, stage: usize) -> bool {
        self.owned.instance.members[stage].iter().all(|position| self.routes.has_room(self.owned.view(), *position))
    }

    /// A route begins at another source; lots that are not full stay with theirs, as every source has one at most.
    fn hand_over_route(&mut self) -> bool {
        let sources = &self.owned.instance.members[0];
        if sources.len() < 2 {
            return false;
        }
        let route = self.rng.random_range(0..self.owned.tasks.len());
        let to = sources[self.rng.random_range(0..sources.len())];
        let task = self.owned.tasks[route];
        let from = task.source;
        if from == to || task.waves != self.owned.instance.rules.waves as usize {
            return false;
        }
        self.owned.tasks[route].source = to;
        if self.owned.instance.rules.cc1 {
            let mut path = self.routes.path(route).clone();
            path[0] = to as u32;
            if self.routes.apply(self.owned.view(), Change::from_iter([(route as u32, path)])).is_none() {
                self.owned.tasks[route].source = from;
                return false;
            }
        }
        self.count_sources();
        true
    }

    fn count_sources(&mut self) {
        let owned = &mut self.owned;
        let started = |node: usize| owned.tasks.iter().filter(|t| t.source == node).map(|t| t.waves).sum::<usize>();
        let source = |node: &usize| Source { node: *node, microbatches: started(*node), class: 0 };
        let sources = owned.instance.members[0].iter().map(source).filter(|s| s.microbatches > 0).collect();
        owned.instance.sources = sources;
    }

    /// A node leaves its stage for none, or joins one; stage 0 stays as large as it is.
    fn join_or_leave(&mut self) -> bool {
        let instance = &self.owned.instance;
        let position = self.rng.random_range(0..instance.node_count());
        let to = match instance.stage_of[position] {
            0 => return false,
            NO_STAGE => instance.present[self.rng.random_range(0..instance.present.len())],
            _ => NO_STAGE,
        };
        let may_grow = |placement: &Placement| to == NO_STAGE || placement.may_grow(instance, to);
        to != 0 && self.placement.as_ref().is_some_and(may_grow) && self.move_node(position, to)
    }

    /// A node leaves its stage, and others of the stage take its routes; or it joins one, and takes some of theirs.
    fn move_node(&mut self, position: usize, to: usize) -> bool {
        let instance = &self.owned.instance;
        let from = instance.stage_of[position];
        let of = |stage: usize| instance.members.get(stage).cloned().unwrap_or_default();
        let (mut others, movers) = (of(from), of(to));
        others.retain(|p| *p != position);
        if from != NO_STAGE && others.is_empty() {
            return false;
        }
        for route in self.routes.users(position).to_vec() {
            let other = others[self.rng.random_range(0..others.len())];
            if !self.divert(route, position, other) {
                return false;
            }
        }
        let Some(placement) = &mut self.placement else { return false };
        if !placement.switch(&mut self.owned.instance, position, to) || !placement.is_close(&self.owned.instance, to) {
            return false;
        }
        for other in &movers {
            for route in self.routes.users(*other).to_vec() {
                let share = 1.0 / (movers.len() + 1) as f64;
                if self.rng.random_bool(share) {
                    // It need not take all of them.
                    self.divert(route, *other, position);
                }
            }
        }
        true
    }

    /// Leads a route over another node of the same stage, which is not stage 0.
    fn divert(&mut self, route: u32, from: usize, to: usize) -> bool {
        let mut path = self.routes.path(route as usize).clone();
        for node in path.iter_mut().filter(|node| **node as usize == from) {
            *node = to as u32;
        }
        self.routes.apply(self.owned.view(), Change::from_iter([(route, path)])).is_some()
    }

    fn saved(&self) -> Saved {
        (self.owned.clone(), self.placement.clone(), self.routes.clone(), self.estimate.clone())
    }

    fn restore(&mut self, saved: Saved) {
        (self.owned, self.placement, self.routes, self.estimate) = saved;
    }

    fn write_all(&mut self) {
        let all: Change =
            (0..self.owned.tasks.len() as u32).map(|r| (r, self.routes.path(r as usize).clone())).collect();
        self.write(&all);
    }
}

type Saved = (OwnedInstance, Option<Placement>, Routes, Estimate);
