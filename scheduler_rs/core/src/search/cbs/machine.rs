//! One node runs one task at a time: what follows for the windows of its tasks.
//!
//! Tasks of agents that certainly come by are *forced*; what they mean for one another is found pair by pair and by
//! edge finding. A task that may come by is only ever told, never counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::{NEVER, Time};

use super::model::Model;
use super::propagate::{due, release};
use super::state::{Dead, State};

/// A stretch of time on a node, by its windows. A task has one slot and one length; a holding starts with one slot's
/// task, ends with another's, and its length is the least there is.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Agent.
    pub agent: usize,
    /// Whether the agent certainly comes by.
    pub forced: bool,
    /// Slot whose start is the start.
    pub first: usize,
    /// Slot whose end is the end.
    pub last: usize,
    /// Earliest start.
    pub from: Time,
    /// Latest start.
    pub latest: Time,
    /// Earliest end.
    pub soonest: Time,
    /// Latest end.
    pub to: Time,
    /// Least length.
    pub length: Time,
}

/// Buffers.
#[derive(Debug, Default)]
pub struct Machine {
    /// What one node may run, or hold.
    pub stretches: Vec<Stretch>,
    forced: Vec<Stretch>,
    bound: Vec<Time>,
    reach: Vec<Time>,
    ends: Vec<Time>,
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    left: Vec<Time>,
}

/// Tasks of `node`: windows, and how much slack the limit leaves.
pub fn tasks(
    model: &Model<'_>,
    state: &mut State,
    node: usize,
    machine: &mut Machine,
    dirty: &mut [bool],
) -> Result<(), Dead> {
    machine.stretches.clear();
    for (agent, known) in model.agents.iter().enumerate() {
        let stretch = |slot: usize, forced: bool| {
            let (from, to, length) = (state.head[slot], state.last[slot], model.length[slot]);
            let (latest, soonest) = (to - length, from + length);
            Stretch { agent, forced, first: slot, last: slot, from, latest, soonest, to, length }
        };
        for wave in 0..known.waves {
            if state.is_possible(model, agent, node) {
                let forced = state.is_forced(model, agent, node);
                machine.stretches.push(stretch(model.slot(agent, wave, 2 * node as u32), forced));
                machine.stretches.push(stretch(model.slot(agent, wave, 2 * node as u32 + 1), forced));
            }
            if known.source == node {
                machine.stretches.push(stretch(model.slot(agent, wave, model.loss_op()), true));
            }
        }
    }
    if machine.stretches.len() < 2 {
        state.node_slack[node] = NEVER;
        return Ok(());
    }
    pairs(model, state, node, machine, dirty)?;
    machine.take_forced();
    machine.edges(false, state, dirty)?;
    machine.edges(true, state, dirty)?;
    state.node_slack[node] = machine.slack();
    if state.node_slack[node] < 0 { Err(Dead) } else { Ok(()) }
}

/// Two stretches of which one cannot come first: then the other one does.
pub fn pairs(
    model: &Model<'_>,
    state: &mut State,
    node: usize,
    machine: &Machine,
    dirty: &mut [bool],
) -> Result<(), Dead> {
    let all = &machine.stretches;
    for (i, x) in all.iter().enumerate().filter(|(_, x)| x.forced) {
        for (j, y) in all.iter().enumerate() {
            if x.agent == y.agent || (y.forced && j < i) {
                continue;
            }
            let (before, after) = (x.soonest <= y.latest, y.soonest <= x.latest);
            match (before, after) {
                (true, true) => {}
                (false, false) if y.forced => return Err(Dead),
                (false, false) => {
                    state.keep(model, y.agent, dirty, |way| !way.nodes.contains(&(node as u32)));
                }
                (true, false) => {
                    release(state, y.first, y.agent, x.soonest, dirty);
                    if y.forced {
                        due(state, x.last, x.agent, y.latest, dirty);
                    }
                }
                (false, true) => {
                    due(state, y.last, y.agent, x.latest, dirty);
                    if y.forced {
                        release(state, x.first, x.agent, y.soonest, dirty);
                    }
                }
            }
        }
    }
    Ok(())
}

impl Machine {
    /// Goes on with the forced stretches alone.
    pub fn take_forced(&mut self) {
        self.forced.clear();
        self.forced.extend(self.stretches.iter().filter(|s| s.forced));
    }

    /// Edge finding (Nuijten): where a set of tasks ends too late with one more among them, that one comes after
    /// all of them. `mirrored`: the same backwards in time.
    pub fn edges(&mut self, mirrored: bool, state: &mut State, dirty: &mut [bool]) -> Result<(), Dead> {
        let n = self.forced.len();
        let flip = |s: &Stretch| if mirrored { (-s.to, -s.from) } else { (s.from, s.to) };
        self.forced.sort_unstable_by_key(|s| (flip(s), s.first));
        self.bound.clear();
        self.bound.resize(n, Time::MIN);
        self.reach.resize(n, 0);
        self.ends.clear();
        self.ends.extend(self.forced.iter().map(|s| flip(s).1));
        self.ends.sort_unstable();
        self.ends.dedup();
        for end in self.ends.iter().copied() {
            let (mut work, mut latest) = (0, Time::MIN);
            for (i, s) in self.forced.iter().enumerate().rev() {
                let (from, to) = flip(s);
                if to <= end {
                    work += s.length;
                    latest = latest.max(from + work);
                    if latest > end {
                        return Err(Dead);
                    }
                }
                self.reach[i] = latest;
            }
            let mut reached = Time::MIN;
            for (i, s) in self.forced.iter().enumerate() {
                let (from, to) = flip(s);
                if to <= end {
                    reached = reached.max(from + work);
                    work -= s.length;
                } else if reached > Time::MIN && reached + s.length > end {
                    self.bound[i] = self.bound[i].max(latest);
                } else if work > 0 && from + work + s.length > end {
                    self.bound[i] = self.bound[i].max(self.reach[i]);
                }
            }
        }
        for (s, bound) in self.forced.iter().zip(&self.bound) {
            if *bound == Time::MIN {
                continue;
            }
            if mirrored {
                due(state, s.last, s.agent, -*bound, dirty);
            } else {
                release(state, s.first, s.agent, *bound, dirty);
            }
        }
        Ok(())
    }

    /// How much earlier everything could have to end until a schedule that may interrupt tasks no longer exists
    /// (Jackson's, with latest ends in place of tails); negative where it does not exist even so.
    pub fn slack(&mut self) -> Time {
        self.forced.sort_unstable_by_key(|s| (s.from, s.first));
        self.queue.clear();
        self.left.clear();
        self.left.extend(self.forced.iter().map(|s| s.length));
        let (mut time, mut next, mut slack) = (0, 0, NEVER);
        loop {
            let coming = self.forced.get(next).map_or(NEVER, |s| s.from);
            let Some(Reverse((to, task))) = self.queue.pop() else {
                if next == self.forced.len() {
                    return slack;
                }
                time = time.max(coming);
                while next < self.forced.len() && self.forced[next].from <= time {
                    self.queue.push(Reverse((self.forced[next].to, next)));
                    next += 1;
                }
                continue;
            };
            let end = time + self.left[task];
            if end <= coming {
                time = end;
                slack = slack.min(to - end);
            } else {
                self.left[task] = end - coming;
                time = coming;
                self.queue.push(Reverse((to, task)));
            }
            while next < self.forced.len() && self.forced[next].from <= time {
                self.queue.push(Reverse((self.forced[next].to, next)));
                next += 1;
            }
        }
    }
}
