//! The agents' own best ways beside each other: what collides, and which constraints would break it.

use smallvec::{SmallVec, smallvec};

use crate::route::stage_bit;
use crate::rules::MemoryRule;
use crate::time::Time;

use super::choice::{Choice, Run, runs, value};
use super::model::Model;
use super::state::{Decision, State};

/// Constraints of the children of one branching: together they leave nothing out.
pub type Branching = SmallVec<[Decision; 2]>;

/// What a branching is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A stage over or under its quota (CC3).
    Quota,
    /// Lengths that do not add up.
    Length,
    /// More routes over a node than it has memory for, or more microbatches held.
    Memory,
    /// Two tasks at a time.
    Overlap,
    /// Ways that are later together, by the orders decided on, than each by itself.
    Detour,
}

/// All ways to break a conflict of the chosen ways, and the number of conflicts.
///
/// The orders decided on are kept by the starts where `settled`; without any conflict the ways should end by `least`.
pub fn branchings(
    model: &Model<'_>,
    state: &State,
    chosen: &[Choice],
    settled: bool,
    least: Time,
) -> (Vec<(Cause, Branching)>, usize) {
    let mut found = Found { model, state, chosen, list: Vec::new(), count: 0 };
    found.quotas();
    found.lengths();
    if model.instance.rules.tc1 == MemoryRule::Routes {
        found.routes_over_nodes();
    }
    let mut nodes: Vec<Vec<Run>> = vec![Vec::new(); model.nodes.len()];
    for (agent, choice) in chosen.iter().enumerate() {
        for (node, run) in runs(model, agent, choice) {
            nodes[node].push(run);
        }
    }
    for (node, runs) in nodes.iter_mut().enumerate() {
        runs.sort_unstable_by_key(|r| (r.start, r.end, r.slot));
        found.overlaps(node, runs);
        if model.is_held() {
            found.holdings(node, runs);
        }
    }
    if !settled || chosen.iter().enumerate().any(|(agent, choice)| value(model, agent, choice) > least) {
        found.count += 1;
        found.detours();
    }
    (found.list, found.count)
}

struct Found<'f> {
    model: &'f Model<'f>,
    state: &'f State,
    chosen: &'f [Choice],
    list: Vec<(Cause, Branching)>,
    count: usize,
}

impl Found<'_> {
    fn way(&self, agent: usize) -> &super::catalogue::Way {
        &self.model.ways(agent)[self.chosen[agent].way]
    }

    fn quotas(&mut self) {
        let model = self.model;
        let mut counts = vec![0_usize; model.instance.stage_count()];
        for node in (0..self.chosen.len()).flat_map(|a| &self.way(a).nodes) {
            counts[model.stage_of[*node as usize]] += 1;
        }
        let inner = || model.instance.present.iter().filter(|s| **s != 0).map(|s| counts[*s]);
        // Where the stages only have to be even, the fewest and the most visited one are at odds.
        let (fewest, most) = if model.is_even {
            let (low, high) = (inner().min().unwrap_or(0), inner().max().unwrap_or(0));
            (high.saturating_sub(1), low + 1)
        } else {
            (0, usize::MAX)
        };
        for stage in model.instance.present.iter().copied() {
            let count = counts[stage];
            let is_inner = stage != 0;
            let over = count > model.demand.most[stage] || (is_inner && count > most);
            let under = !over && (count < model.demand.least[stage] || (is_inner && count < fewest));
            if over || under {
                self.count += 1;
                self.quota(stage, over);
            }
        }
    }

    /// Over the quota one of the visitors must not visit, under it one of the others must.
    fn quota(&mut self, stage: usize, over: bool) {
        let bit = stage_bit(stage);
        let agents = (0..self.chosen.len()).filter(|a| (self.way(*a).stages & bit != 0) == over);
        let open = |a: &usize| self.state.agents[*a].may & !self.state.agents[*a].must & bit != 0;
        let mut agents: Vec<usize> = agents.filter(open).collect();
        agents.sort_by_key(|a| (self.state.agents[*a].ways, *a));
        for agent in agents.into_iter().take(2) {
            let decide = |visit: bool| Decision::Stage(agent as u32, stage as u32, visit);
            self.list.push((Cause::Quota, smallvec![decide(!over), decide(over)]));
        }
    }

    fn lengths(&mut self) {
        let demand = self.model.demand;
        let total: usize = (0..self.chosen.len()).map(|a| self.way(a).nodes.len()).sum();
        let long = (0..self.chosen.len()).filter(|a| self.way(*a).nodes.len() > demand.short).count();
        let outside = |range: Option<(usize, usize)>, value: usize| range.is_some_and(|(a, b)| value < a || value > b);
        if !outside(demand.total, total) && !outside(demand.long_routes, long) {
            return;
        }
        self.count += 1;
        let is_open = |a: &usize| {
            let visits = self.state.agents[*a].visits;
            visits.0 != visits.1
        };
        if let Some(agent) = (0..self.chosen.len()).filter(is_open).min_by_key(|a| (self.state.agents[*a].ways, *a)) {
            let decide = |long: bool| Decision::Long(agent as u32, long);
            self.list.push((Cause::Length, smallvec![decide(true), decide(false)]));
        }
    }

    fn routes_over_nodes(&mut self) {
        for node in 0..self.model.nodes.len() {
            let users: Vec<usize> =
                (0..self.chosen.len()).filter(|a| self.way(*a).nodes.contains(&(node as u32))).collect();
            if users.len() <= self.model.memory(node) {
                continue;
            }
            self.count += 1;
            let open = users.into_iter().filter(|a| !self.state.is_forced(self.model, *a, node));
            if let Some(agent) = open.min_by_key(|a| (self.state.agents[*a].ways, *a)) {
                self.list.push((Cause::Memory, visit(agent, node)));
            }
        }
    }

    /// Pairs that run at the same time, `runs` being in order of their starts.
    fn overlaps(&mut self, node: usize, runs: &[Run]) {
        for (i, x) in runs.iter().enumerate() {
            for y in runs[i + 1..].iter().take_while(|y| y.start < x.end) {
                if x.agent == y.agent || !x.overlaps(y) {
                    continue;
                }
                self.count += 1;
                let branching = self.pair(node, (x.agent, x.slot, x.slot), (y.agent, y.slot, y.slot));
                self.list.push((Cause::Overlap, branching));
            }
        }
    }

    /// Agent, first and last slot of each of two stretches: who goes where, and if both come by, who goes first.
    fn pair(&self, node: usize, x: (usize, usize, usize), y: (usize, usize, usize)) -> Branching {
        let source = |slot: usize, agent: usize| {
            (slot - self.model.agents[agent].base) % self.model.width == self.model.width - 1
        };
        for (agent, slot, _) in [x, y] {
            if !source(slot, agent) && !self.state.is_forced(self.model, agent, node) {
                return visit(agent, node);
            }
        }
        smallvec![Decision::Order(x.2 as u32, y.1 as u32), Decision::Order(y.2 as u32, x.1 as u32)]
    }

    /// Sets of holdings that are one too many for the node's memory at some time. One of them must be over before
    /// another one begins.
    fn holdings(&mut self, node: usize, runs: &[Run]) {
        let memory = self.model.memory(node);
        let mut held: Vec<Run> = Vec::new();
        let out = 2 * node;
        let op = |run: &Run| (run.slot - self.model.agents[run.agent].base) % self.model.width;
        for run in runs.iter().filter(|r| op(r) == out) {
            // The backward's slot follows the forward's.
            let end = runs.iter().find(|r| r.slot == run.slot + 1).map_or(run.end, |r| r.end);
            let holding = Run { end, ..*run };
            held.retain(|h| h.end > holding.start);
            held.push(holding);
            if held.len() <= memory {
                continue;
            }
            self.count += 1;
            let open = held.iter().find(|h| !self.state.is_forced(self.model, h.agent, node));
            if let Some(holding) = open {
                self.list.push((Cause::Memory, visit(holding.agent, node)));
            } else {
                // Those that end first are the ones for which the last one can wait.
                let mut set = held.clone();
                set.pop();
                set.sort_unstable_by_key(|h| (h.end, h.slot));
                set.truncate(memory);
                set.push(holding);
                self.list.push((Cause::Memory, self.one_after_another(node, &set)));
            }
            // One conflict at a time.
            return;
        }
    }

    /// Every pair of them that can still be in this order.
    fn one_after_another(&self, node: usize, set: &[Run]) -> Branching {
        let mut branching = Branching::new();
        for x in set {
            for y in set.iter().filter(|y| y.agent != x.agent && !self.is_turned(node, x, y)) {
                let (end, start) = (x.slot + 1, y.slot);
                let soonest = self.state.head[end] + self.model.length[end];
                if soonest <= self.state.last[start] - self.model.length[start] {
                    branching.push(Decision::Order(end as u32, start as u32));
                }
            }
        }
        branching
    }

    /// Whether the order of equal agents says that the first microbatch of `y` starts before that of `x`.
    fn is_turned(&self, node: usize, x: &Run, y: &Run) -> bool {
        let leads = |run: &Run| {
            let slot = self.model.slot(run.agent, 0, self.model.leading_op(run.agent));
            run.slot == slot && node == self.model.agents[run.agent].source
        };
        let alike = |g: &super::model::Group| g.agents.contains(&x.agent) && g.agents.contains(&y.agent);
        x.agent > y.agent && leads(x) && leads(y) && self.model.groups.iter().any(alike)
    }
}

impl Found<'_> {
    /// An agent that others wait for may have another way on which it would be there sooner; else any agent that
    /// has a choice takes part in it.
    fn detours(&mut self) {
        let (model, state) = (self.model, self.state);
        let start = |slot: usize| {
            let agent = model.agent_of[slot] as usize;
            runs(model, agent, &self.chosen[agent]).find(|(_, r)| r.slot == slot).map_or(0, |(_, r)| r.start)
        };
        let has_choice = |agent: &usize| state.agents[*agent].ways > 1;
        let mut agents: Vec<usize> = Vec::new();
        for (first, second) in &state.orders {
            let (first, second) = (*first as usize, *second as usize);
            let agent = model.agent_of[first] as usize;
            let from = start(first);
            if from > state.head[first] && start(second) <= from + model.length[first] {
                agents.push(agent);
            }
        }
        agents.sort_unstable();
        agents.dedup();
        agents.retain(has_choice);
        if agents.is_empty() {
            agents = (0..self.chosen.len()).filter(has_choice).collect();
        }
        agents.sort_by_key(|a| (state.agents[*a].ways, *a));
        for agent in agents.into_iter().take(2) {
            self.list.push((Cause::Detour, self.split(agent)));
        }
    }

    /// Splits the ways of an agent by a node of its way, or where all have the same nodes by the way itself.
    fn split(&self, agent: usize) -> Branching {
        let open = |node: &&u32| !self.state.is_forced(self.model, agent, **node as usize);
        let cover = |node: &u32| self.state.cover[agent * self.model.nodes.len() + *node as usize];
        match self.way(agent).nodes.iter().filter(open).min_by_key(|n| (cover(n), **n)) {
            Some(node) => visit(agent, *node as usize),
            None => {
                let decide = |takes: bool| Decision::Way(agent as u32, self.chosen[agent].way as u32, takes);
                smallvec![decide(true), decide(false)]
            }
        }
    }
}

fn visit(agent: usize, node: usize) -> Branching {
    let decide = |visit: bool| Decision::Node(agent as u32, node as u32, visit);
    smallvec![decide(true), decide(false)]
}
