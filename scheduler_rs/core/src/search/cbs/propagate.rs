//! From constraints to windows, until nothing changes any more: the low level of each agent, then what agents mean
//! to each other on nodes and stages.

use crate::budget::Budget;
use crate::route::StageSet;
use crate::time::{NEVER, Time};

use super::counting;
use super::machine::{self, Machine};
use super::memory;
use super::model::Model;
use super::state::{Dead, Known, State};

/// Memory that propagation reuses, and what it counts.
#[derive(Debug)]
pub struct Propagator<'a> {
    budget: &'a Budget,
    /// Whether the budget was over before a fixed point was reached: windows and all that follows from them are not
    /// to be used then.
    pub is_stopped: bool,
    /// Agents whose ways are to be looked at again.
    pub dirty: Vec<bool>,
    nodes: Vec<bool>,
    head: Vec<Time>,
    last: Vec<Time>,
    times: Times,
    machine: Machine,
    /// Ways tried: the measure of work.
    pub labels: u64,
}

/// Rounds after which propagation gives up on going on; windows may then be wider than they could be.
const MOST_ROUNDS: usize = 400;

impl<'a> Propagator<'a> {
    /// For one model.
    pub fn new(model: &Model<'_>, budget: &'a Budget) -> Self {
        Self {
            budget,
            is_stopped: false,
            dirty: vec![false; model.agents.len()],
            nodes: vec![false; model.nodes.len()],
            head: vec![0; model.slots],
            last: vec![0; model.slots],
            times: Times::default(),
            machine: Machine::default(),
            labels: 0,
        }
    }

    /// Everything anew.
    pub fn all(&mut self, model: &Model<'_>, state: &mut State) -> Result<(), Dead> {
        self.dirty.fill(true);
        self.nodes.fill(true);
        self.run(model, state)
    }

    /// From the dirty agents on, to the fixed point.
    pub fn run(&mut self, model: &Model<'_>, state: &mut State) -> Result<(), Dead> {
        let result = self.rounds(model, state);
        self.clear();
        result
    }

    fn clear(&mut self) {
        self.dirty.fill(false);
        self.nodes.fill(false);
    }

    fn rounds(&mut self, model: &Model<'_>, state: &mut State) -> Result<(), Dead> {
        for _ in 0..MOST_ROUNDS {
            self.agents(model, state)?;
            if self.is_stopped {
                return Ok(());
            }
            while counting::quotas(model, state, &mut self.dirty)? {
                self.agents(model, state)?;
                if self.is_stopped {
                    return Ok(());
                }
            }
            orders(model, state, &mut self.dirty);
            if model.is_held() {
                memory::in_turn(model, state, &mut self.dirty)?;
            }
            for node in 0..model.nodes.len() {
                if std::mem::replace(&mut self.nodes[node], false) {
                    machine::tasks(model, state, node, &mut self.machine, &mut self.dirty)?;
                    if model.is_held() {
                        memory::holdings(model, state, node, &mut self.machine, &mut self.dirty)?;
                    }
                }
            }
            if !self.dirty.iter().any(|d| *d) {
                return counting::loads(model, state);
            }
        }
        self.agents(model, state)?;
        if self.is_stopped { Ok(()) } else { counting::loads(model, state) }
    }

    fn agents(&mut self, model: &Model<'_>, state: &mut State) -> Result<(), Dead> {
        for agent in 0..model.agents.len() {
            if self.dirty[agent] {
                self.is_stopped |= self.budget.is_over();
                if self.is_stopped {
                    return Ok(());
                }
                self.agent(model, state, agent)?;
            }
        }
        Ok(())
    }

    /// The low level: every way left to an agent, as early and as late as its windows allow. Waiting is free, so
    /// each task as early as it can is the best for a way; a way that does not fit is taken off.
    fn agent(&mut self, model: &Model<'_>, state: &mut State, agent: usize) -> Result<(), Dead> {
        self.dirty[agent] = false;
        let node_count = model.nodes.len();
        let (base, slots) = (model.agents[agent].base, model.agents[agent].waves * model.width);
        self.head[base..base + slots].fill(NEVER);
        self.last[base..base + slots].fill(-1);
        let before = state.agents[agent];
        let row = agent * node_count;
        state.cover[row..row + node_count].fill(0);
        state.hold[row..row + node_count].fill(NEVER);
        let mut known = Known { ways: 0, must: StageSet::MAX, may: 0, visits: (u8::MAX, 0), slack: Time::MIN };
        let first = model.agents[agent].words;
        for word in 0..model.ways(agent).len().div_ceil(64) {
            let mut bits = state.alive[first + word];
            while bits != 0 {
                let number = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.labels += model.agents[agent].waves as u64;
                let Some(slack) = fit(model, state, agent, number, &mut self.times) else {
                    state.remove(model, agent, number);
                    continue;
                };
                self.widen(model, agent, number);
                let way = &model.ways(agent)[number];
                known.ways += 1;
                known.must &= way.stages;
                known.may |= way.stages;
                known.slack = known.slack.max(slack);
                let visits = way.nodes.len() as u8;
                known.visits = (known.visits.0.min(visits), known.visits.1.max(visits));
                for (node, hold) in way.nodes.iter().zip(&way.holds) {
                    state.cover[row + *node as usize] += 1;
                    let least = &mut state.hold[row + *node as usize];
                    *least = (*least).min(*hold);
                }
            }
        }
        if known.ways == 0 {
            return Err(Dead);
        }
        let fewer = known.ways != before.ways;
        for slot in base..base + slots {
            if state.head[slot] != self.head[slot] || state.last[slot] != self.last[slot] || fewer {
                state.head[slot] = self.head[slot];
                state.last[slot] = self.last[slot];
                self.nodes[model.node_of(agent, ((slot - base) % model.width) as u32)] = true;
            }
        }
        state.agents[agent] = known;
        Ok(())
    }

    /// Widens the windows of an agent to hold the way that was fitted last.
    fn widen(&mut self, model: &Model<'_>, agent: usize, number: usize) {
        let steps = &model.ways(agent)[number].steps;
        let mut at = 0;
        let mut ends = self.times.ends.iter().rev();
        for wave in 0..model.agents[agent].waves {
            let base = model.slot(agent, wave, 0);
            for step in steps {
                let slot = base + step.op as usize;
                self.head[slot] = self.head[slot].min(self.times.starts[at]);
                self.last[slot] = self.last[slot].max(ends.next().copied().unwrap_or(NEVER));
                at += 1;
            }
        }
    }
}

/// Times of the tasks of one way.
#[derive(Debug, Default)]
pub struct Times {
    /// Earliest starts, wave by wave.
    pub starts: Vec<Time>,
    /// Latest ends, from the last task back to the first.
    ends: Vec<Time>,
}

/// One way within its agent's windows: the least slack of its tasks between earliest and latest end, none where one
/// does not fit.
pub fn fit(model: &Model<'_>, state: &State, agent: usize, number: usize, times: &mut Times) -> Option<Time> {
    let way = &model.ways(agent)[number];
    let waves = model.agents[agent].waves;
    times.starts.clear();
    let mut time = 0;
    for wave in 0..waves {
        let base = model.slot(agent, wave, 0);
        for step in &way.steps {
            let slot = base + step.op as usize;
            let start = (time + step.travel).max(state.release[slot]);
            time = start + step.length;
            if time > state.due[slot] || time + step.reduce > state.limit {
                return None;
            }
            times.starts.push(start);
        }
        time += way.return_transfer;
    }
    let mut end = state.limit;
    let mut slack = end - time;
    if slack < 0 {
        return None;
    }
    times.ends.clear();
    for wave in (0..waves).rev() {
        let base = model.slot(agent, wave, 0);
        end -= way.return_transfer;
        for (place, step) in way.steps.iter().enumerate().rev() {
            let latest = end.min(state.due[base + step.op as usize]).min(state.limit - step.reduce);
            end = latest - step.length - step.travel;
            slack = slack.min(latest - times.starts[wave * way.steps.len() + place] - step.length);
            times.ends.push(latest);
        }
    }
    (slack >= 0).then_some(slack)
}

/// What the orders decided on mean for the windows. Both tasks are on every way that is left.
fn orders(model: &Model<'_>, state: &mut State, dirty: &mut [bool]) {
    for place in 0..state.orders.len() {
        let (first, second) = (state.orders[place].0 as usize, state.orders[place].1 as usize);
        let (one, other) = (model.agent_of[first] as usize, model.agent_of[second] as usize);
        let (from, until) = (state.head[first] + model.length[first], state.last[second] - model.length[second]);
        release(state, second, other, from, dirty);
        due(state, first, one, until, dirty);
    }
}

/// Raises the release of a slot; its agent becomes dirty where that says something new.
pub fn release(state: &mut State, slot: usize, agent: usize, time: Time, dirty: &mut [bool]) {
    if time > state.head[slot] && time > state.release[slot] {
        state.release[slot] = time;
        dirty[agent] = true;
    }
}

/// Lowers the latest end of a slot; its agent becomes dirty where that says something new.
pub fn due(state: &mut State, slot: usize, agent: usize, time: Time, dirty: &mut [bool]) {
    if time < state.last[slot] && time < state.due[slot] {
        state.due[slot] = time;
        dirty[agent] = true;
    }
}
