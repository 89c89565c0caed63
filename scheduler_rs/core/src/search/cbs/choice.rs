//! A way for each agent, beside those of the others.

use crate::route::stage_bit;
use crate::rules::MemoryRule;
use crate::time::Time;

use super::catalogue::Way;
use super::model::Model;
use super::propagate::{Times, fit};
use super::state::State;

/// One agent's way with its starts.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Number of the way.
    pub way: usize,
    /// Starts of its tasks, wave by wave.
    pub starts: Vec<Time>,
    /// Slack of the limit.
    pub slack: Time,
    /// Whether another way would leave its agent more slack.
    pub is_bypass: bool,
}

/// A task of the chosen ways on a node.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Start.
    pub start: Time,
    /// End.
    pub end: Time,
    /// Agent.
    pub agent: usize,
    /// Its slot.
    pub slot: usize,
}

impl Run {
    /// Also a task of no length needs a node that is idle.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.end > other.start && other.end > self.start
    }
}

/// A way for each agent that leaves at least `slack`, so that all together are in each other's way as little as
/// passes over the agents bring about.
pub fn choose(model: &Model<'_>, state: &State, slack: Time) -> Vec<Choice> {
    let mut options: Vec<Vec<Choice>> = Vec::new();
    let mut times = Times::default();
    for agent in 0..model.agents.len() {
        let mut own: Vec<Choice> = Vec::new();
        for way in state.ways(model, agent) {
            if let Some(found) = fit(model, state, agent, way, &mut times)
                && found >= slack
            {
                own.push(Choice { way, starts: times.starts.clone(), slack: found, is_bypass: false });
            }
        }
        own.sort_by_key(|c| (std::cmp::Reverse(c.slack), c.way));
        own.truncate(MOST_OPTIONS);
        options.push(own);
    }
    let mut table = Table::new(model);
    let mut chosen: Vec<usize> = Vec::new();
    for (agent, own) in options.iter().enumerate() {
        let best = table.best(model, agent, own, true);
        table.place(model, agent, &own[best], 1);
        chosen.push(best);
    }
    for _ in 0..PASSES {
        let mut changed = false;
        for (agent, own) in options.iter().enumerate().filter(|(_, own)| own.len() > 1) {
            table.place(model, agent, &own[chosen[agent]], -1);
            let best = table.best(model, agent, own, false);
            changed |= best != chosen[agent];
            chosen[agent] = best;
            table.place(model, agent, &own[best], 1);
        }
        if !changed {
            break;
        }
    }
    let take = |(mut own, best): (Vec<Choice>, usize)| {
        let is_bypass = own[best].slack < own[0].slack;
        Choice { is_bypass, ..own.swap_remove(best) }
    };
    options.into_iter().zip(chosen).map(take).collect()
}

/// Ways that are compared for one agent.
const MOST_OPTIONS: usize = 40;
const PASSES: usize = 3;

/// Where the ways chosen so far run.
struct Table {
    runs: Vec<Vec<Run>>,
    visits: Vec<i32>,
    users: Vec<i32>,
    long: i32,
    total: i32,
}

impl Table {
    fn new(model: &Model<'_>) -> Self {
        let nodes = model.nodes.len();
        let stages = model.instance.stage_count();
        Self { runs: vec![Vec::new(); nodes], visits: vec![0; stages], users: vec![0; nodes], long: 0, total: 0 }
    }

    fn place(&mut self, model: &Model<'_>, agent: usize, choice: &Choice, sign: i32) {
        let way = &model.ways(agent)[choice.way];
        for node in &way.nodes {
            self.visits[model.stage_of[*node as usize]] += sign;
            self.users[*node as usize] += sign;
        }
        self.total += sign * way.nodes.len() as i32;
        self.long += sign * i32::from(way.nodes.len() > model.demand.short);
        if sign < 0 {
            for node in way.nodes.iter().map(|n| *n as usize).chain([model.agents[agent].source]) {
                self.runs[node].retain(|r| r.agent != agent);
            }
            return;
        }
        for (node, run) in runs(model, agent, choice) {
            self.runs[node].push(run);
        }
    }

    /// The option that costs least: rules broken and overlaps, then slack.
    fn best(&self, model: &Model<'_>, agent: usize, options: &[Choice], first: bool) -> usize {
        let (mut least, mut best) = (i32::MAX, 0);
        for (number, choice) in options.iter().enumerate() {
            let mut cost = RULE_COST * self.broken(model, &model.ways(agent)[choice.way], first);
            for (node, run) in runs(model, agent, choice) {
                if cost >= least {
                    break;
                }
                cost += self.runs[node].iter().filter(|r| r.overlaps(&run)).count() as i32;
            }
            if cost < least {
                (least, best) = (cost, number);
            }
            if least == 0 {
                break;
            }
        }
        best
    }

    /// Quotas, lengths and memory broken with this way among the others.
    fn broken(&self, model: &Model<'_>, way: &Way, first: bool) -> i32 {
        let demand = model.demand;
        let mut broken = 0;
        for stage in model.instance.present.iter().copied() {
            let count = self.visits[stage] + i32::from(way.stages & stage_bit(stage) != 0);
            broken += (count - demand.most[stage].min(1 << 20) as i32).max(0);
            if !first {
                broken += (demand.least[stage] as i32 - count).max(0);
            }
        }
        if !first && let Some((least, most)) = demand.total {
            let total = self.total + way.nodes.len() as i32;
            broken += (least as i32 - total).max(total - most as i32).max(0);
        }
        if !first && let Some((least, most)) = demand.long_routes {
            let long = self.long + i32::from(way.nodes.len() > demand.short);
            broken += (least as i32 - long).max(long - most as i32).max(0);
        }
        if model.instance.rules.tc1 == MemoryRule::Routes {
            for node in &way.nodes {
                broken += (self.users[*node as usize] + 1 - model.memory(*node as usize) as i32).max(0);
            }
        }
        broken
    }
}

const RULE_COST: i32 = 4;

/// The tasks of a choice with their nodes.
pub fn runs<'m>(model: &'m Model<'_>, agent: usize, choice: &'m Choice) -> impl Iterator<Item = (usize, Run)> + 'm {
    let steps = &model.ways(agent)[choice.way].steps;
    choice.starts.chunks(steps.len()).enumerate().flat_map(move |(wave, starts)| {
        steps.iter().zip(starts).map(move |(step, start)| {
            let slot = model.slot(agent, wave, step.op);
            (model.node_of(agent, step.op), Run { start: *start, end: *start + step.length, agent, slot })
        })
    })
}

/// Moves the starts of the chosen ways so that they keep the orders decided on, each as early as it can; whether
/// that comes to an end (orders may run in a circle with these ways).
pub fn settle(model: &Model<'_>, state: &State, chosen: &mut [Choice]) -> bool {
    let mut release = state.release.clone();
    let mut place = vec![usize::MAX; model.slots];
    for (agent, choice) in chosen.iter().enumerate() {
        let steps = &model.ways(agent)[choice.way].steps;
        for at in 0..choice.starts.len() {
            place[model.slot(agent, at / steps.len(), steps[at % steps.len()].op)] = at;
        }
    }
    let mut moved = vec![false; chosen.len()];
    for _ in 0..state.orders.len() + chosen.len() + 1 {
        for (first, second) in &state.orders {
            let (first, second) = (*first as usize, *second as usize);
            let other = model.agent_of[second] as usize;
            let end = chosen[model.agent_of[first] as usize].starts[place[first]] + model.length[first];
            if end > release[second] {
                release[second] = end;
                moved[other] |= end > chosen[other].starts[place[second]];
            }
        }
        if !moved.iter().any(|m| *m) {
            return true;
        }
        for (agent, moved) in moved.iter_mut().enumerate().filter(|(_, moved)| **moved) {
            *moved = false;
            start_early(model, agent, &mut chosen[agent], &release);
        }
    }
    false
}

/// All tasks of a way as early as they can be.
fn start_early(model: &Model<'_>, agent: usize, choice: &mut Choice, release: &[Time]) {
    let way = &model.ways(agent)[choice.way];
    let mut time = 0;
    for (at, start) in choice.starts.iter_mut().enumerate() {
        let (wave, step) = (at / way.steps.len(), &way.steps[at % way.steps.len()]);
        if at > 0 && at % way.steps.len() == 0 {
            time += way.return_transfer;
        }
        *start = (time + step.travel).max(release[model.slot(agent, wave, step.op)]);
        time = *start + step.length;
    }
}

/// When an agent is home, and its stages are reduced.
pub fn value(model: &Model<'_>, agent: usize, choice: &Choice) -> Time {
    let way = &model.ways(agent)[choice.way];
    let from = choice.starts.len() - way.steps.len();
    let ends = way.steps.iter().zip(&choice.starts[from..]).map(|(step, start)| start + step.length + step.reduce);
    let last = choice.starts.last().map_or(0, |start| start + way.steps[way.steps.len() - 1].length);
    ends.max().unwrap_or(0).max(last + way.return_transfer)
}
