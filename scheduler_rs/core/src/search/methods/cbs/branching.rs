//! Conflicts between the selected paths, and for each the constraints of its children.

use smallvec::{SmallVec, smallvec};

use crate::route::stage_bit;
use crate::rules::MemoryRule;
use crate::time::Time;

use super::domains::{Decision, Domains};
use super::model::{Model, SymmetryClass};
use super::path_enumeration::CandidatePath;
use super::path_selection::{SelectedPath, TaskInterval, completion, task_intervals};

/// Constraints of the children, one each. Every execution of the parent satisfies at least one of them.
pub type Branching = SmallVec<[Decision; 2]>;

/// What is in conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// A stage or a class over or under its quota (CC3).
    Quota,
    /// Route lengths that do not add up.
    Length,
    /// More routes over a node, or more microbatches held, than it has memory for (TC1).
    Memory,
    /// Two tasks that overlap on a processor (TC2).
    Overlap,
    /// Paths without conflict that the precedence constraints delay beyond the bound.
    Detour,
}

/// Branchings that resolve a conflict of the selected paths, and the number of conflicts.
///
/// `is_consistent`: the starts satisfy all precedence constraints. Paths without conflict that complete by `least` are
/// optimal for the tree node.
pub fn branchings(
    model: &Model<'_>,
    domains: &Domains,
    selection: &[SelectedPath],
    is_consistent: bool,
    least: Time,
) -> (Vec<(ConflictKind, Branching)>, usize) {
    let mut conflicts = Conflicts { model, domains, selection, branchings: Vec::new(), count: 0 };
    conflicts.quotas();
    conflicts.classes();
    conflicts.lengths();
    if model.instance.rules.tc1 == MemoryRule::Routes {
        conflicts.node_quotas();
    }
    let mut processors: Vec<Vec<TaskInterval>> = vec![Vec::new(); model.nodes.len()];
    for (agent, choice) in selection.iter().enumerate() {
        for (node, run) in task_intervals(model, agent, choice) {
            processors[model.processor(node)].push(run);
        }
    }
    for (processor, runs) in processors.iter_mut().enumerate() {
        runs.sort_unstable_by_key(|r| (r.start, r.end, r.op));
        conflicts.overlaps(runs);
        if model.is_held() && model.processor(processor) == processor {
            model.sharing[processor].iter().for_each(|node| conflicts.holdings(*node, runs));
        }
    }
    if !is_consistent || selection.iter().enumerate().any(|(agent, choice)| completion(model, agent, choice) > least) {
        conflicts.count += 1;
        conflicts.detours();
    }
    (conflicts.branchings, conflicts.count)
}

/// Collects conflicts and their branchings.
struct Conflicts<'f> {
    model: &'f Model<'f>,
    domains: &'f Domains,
    selection: &'f [SelectedPath],
    branchings: Vec<(ConflictKind, Branching)>,
    count: usize,
}

impl Conflicts<'_> {
    fn path(&self, agent: usize) -> &CandidatePath {
        &self.model.paths(agent)[self.selection[agent].path]
    }

    fn quotas(&mut self) {
        let model = self.model;
        let mut counts = vec![0_usize; model.instance.stage_count()];
        for node in (0..self.selection.len()).flat_map(|a| &self.path(a).nodes) {
            counts[model.stage_of[*node as usize]] += 1;
        }
        let inner = || model.instance.present.iter().filter(|s| **s != 0).map(|s| counts[*s]);
        // Where the stages only have to be even, the least and the most visited one conflict.
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

    /// Over the quota, some visitor must not visit; under it, some other agent must.
    fn quota(&mut self, stage: usize, over: bool) {
        let bit = stage_bit(stage);
        let agents = (0..self.selection.len()).filter(|a| (self.path(*a).stages & bit != 0) == over);
        let open =
            |a: &usize| self.domains.agents[*a].possible_stages & !self.domains.agents[*a].required_stages & bit != 0;
        let mut agents: Vec<usize> = agents.filter(open).collect();
        agents.sort_by_key(|a| (self.domains.agents[*a].path_count, *a));
        for agent in agents.into_iter().take(2) {
            let decide = |visit: bool| Decision::Stage(agent as u32, stage as u32, visit);
            self.branchings.push((ConflictKind::Quota, smallvec![decide(!over), decide(over)]));
        }
    }

    /// Over its number of routes, some route of a class must be of another; under it, some other route must be of it.
    fn classes(&mut self) {
        for (class, demand) in self.model.demand.classes.iter().enumerate() {
            let is_of = |agent: &usize| self.path(*agent).stages == demand.stages;
            let count = (0..self.selection.len()).filter(is_of).count();
            let over = count > demand.most;
            if !over && count >= demand.least {
                continue;
            }
            let open = |agent: &usize| is_of(agent) == over && self.domains.is_class_open(*agent, class);
            let mut agents: Vec<usize> = (0..self.selection.len()).filter(open).collect();
            agents.sort_by_key(|agent| (self.domains.agents[*agent].path_count, *agent));
            self.count += 1;
            for agent in agents.into_iter().take(2) {
                let decide = |is_of: bool| Decision::Class(agent as u32, class as u32, is_of);
                self.branchings.push((ConflictKind::Quota, smallvec![decide(!over), decide(over)]));
            }
        }
    }

    fn lengths(&mut self) {
        let demand = self.model.demand;
        let total: usize = (0..self.selection.len()).map(|a| self.path(a).nodes.len()).sum();
        let long = (0..self.selection.len()).filter(|a| self.path(*a).nodes.len() > demand.short).count();
        let outside = |range: Option<(usize, usize)>, value: usize| range.is_some_and(|(a, b)| value < a || value > b);
        if !outside(demand.total, total) && !outside(demand.long_routes, long) {
            return;
        }
        self.count += 1;
        let is_open = |a: &usize| {
            let visits = self.domains.agents[*a].visits;
            visits.0 != visits.1
        };
        if let Some(agent) =
            (0..self.selection.len()).filter(is_open).min_by_key(|a| (self.domains.agents[*a].path_count, *a))
        {
            let decide = |long: bool| Decision::Long(agent as u32, long);
            self.branchings.push((ConflictKind::Length, smallvec![decide(true), decide(false)]));
        }
    }

    fn node_quotas(&mut self) {
        for node in 0..self.model.nodes.len() {
            let users: Vec<usize> =
                (0..self.selection.len()).filter(|a| self.path(*a).nodes.contains(&(node as u32))).collect();
            if users.len() <= self.model.memory(node) {
                continue;
            }
            self.count += 1;
            let open = users.into_iter().filter(|a| !self.domains.is_mandatory(self.model, *a, node));
            if let Some(agent) = open.min_by_key(|a| (self.domains.agents[*a].path_count, *a)) {
                self.branchings.push((ConflictKind::Memory, visit(agent, node)));
            }
        }
    }

    /// Pairs of tasks of a processor that overlap; `runs` is in order of starts.
    fn overlaps(&mut self, runs: &[TaskInterval]) {
        for (i, x) in runs.iter().enumerate() {
            for y in runs[i + 1..].iter().take_while(|y| y.start < x.end) {
                if x.agent == y.agent || !x.overlaps(y) {
                    continue;
                }
                self.count += 1;
                let branching = self.visit_or_order(x, y);
                self.branchings.push((ConflictKind::Overlap, branching));
            }
        }
    }

    /// Whether an agent that can avoid its node visits it; once neither can, which of the two tasks comes first.
    fn visit_or_order(&self, x: &TaskInterval, y: &TaskInterval) -> Branching {
        let is_loss = |run: &TaskInterval| self.model.offset_of(run.agent, run.op) == self.model.width - 1;
        for run in [x, y] {
            let node = self.model.node_of(run.agent, self.model.offset_of(run.agent, run.op) as u32);
            if !is_loss(run) && !self.domains.is_mandatory(self.model, run.agent, node) {
                return visit(run.agent, node);
            }
        }
        smallvec![Decision::Order(x.op as u32, y.op as u32), Decision::Order(y.op as u32, x.op as u32)]
    }

    /// A set of holdings of a node, of whose processor `runs` are, that together exceed the node's memory by one. One of them must end before another one starts.
    fn holdings(&mut self, node: usize, runs: &[TaskInterval]) {
        let memory = self.model.memory(node);
        let mut held: Vec<TaskInterval> = Vec::new();
        let forward = 2 * node;
        for run in runs.iter().filter(|r| self.model.offset_of(r.agent, r.op) == forward) {
            // The backward is the operation after the forward.
            let end = runs.iter().find(|r| r.op == run.op + 1).map_or(run.end, |r| r.end);
            let holding = TaskInterval { end, ..*run };
            held.retain(|h| h.end > holding.start);
            held.push(holding);
            if held.len() <= memory {
                continue;
            }
            self.count += 1;
            let open = held.iter().find(|h| !self.domains.is_mandatory(self.model, h.agent, node));
            if let Some(holding) = open {
                self.branchings.push((ConflictKind::Memory, visit(holding.agent, node)));
            } else {
                // The last one waits most easily for those that end first.
                let mut set = held.clone();
                set.pop();
                set.sort_unstable_by_key(|h| (h.end, h.op));
                set.truncate(memory);
                set.push(holding);
                self.branchings.push((ConflictKind::Memory, self.orders_of_holdings(node, &set)));
            }
            // One conflict per node is enough.
            return;
        }
    }

    /// One child for every ordered pair that is still feasible.
    fn orders_of_holdings(&self, node: usize, set: &[TaskInterval]) -> Branching {
        let mut branching = Branching::new();
        for x in set {
            for y in set.iter().filter(|y| y.agent != x.agent && !self.contradicts_symmetry(node, x, y)) {
                let (end, start) = (x.op + 1, y.op);
                let earliest_end = self.domains.earliest_start[end] + self.model.length[end];
                if earliest_end <= self.domains.latest_end[start] - self.model.length[start] {
                    branching.push(Decision::Order(end as u32, start as u32));
                }
            }
        }
        branching
    }

    /// Whether symmetry breaking has the first microbatch of `y` start before that of `x`.
    fn contradicts_symmetry(&self, node: usize, x: &TaskInterval, y: &TaskInterval) -> bool {
        let leads = |run: &TaskInterval| {
            let op = self.model.op(run.agent, 0, self.model.leading_offset(run.agent));
            run.op == op && node == self.model.agents[run.agent].source
        };
        let alike = |class: &SymmetryClass| class.agents.contains(&x.agent) && class.agents.contains(&y.agent);
        x.agent > y.agent && leads(x) && leads(y) && self.model.symmetry_classes.iter().any(alike)
    }

    /// Branches on the paths of agents that delay others, as another path might arrive earlier; where there are none,
    /// on those of any agent that has a choice.
    fn detours(&mut self) {
        let (model, domains) = (self.model, self.domains);
        let start = |op: usize| {
            let agent = model.agent_of[op] as usize;
            task_intervals(model, agent, &self.selection[agent]).find(|(_, r)| r.op == op).map_or(0, |(_, r)| r.start)
        };
        let has_choice = |agent: &usize| domains.agents[*agent].path_count > 1;
        let mut agents: Vec<usize> = Vec::new();
        for (first, second) in &domains.precedences {
            let (first, second) = (*first as usize, *second as usize);
            let agent = model.agent_of[first] as usize;
            let from = start(first);
            if from > domains.earliest_start[first] && start(second) <= from + model.length[first] {
                agents.push(agent);
            }
        }
        agents.sort_unstable();
        agents.dedup();
        agents.retain(has_choice);
        if agents.is_empty() {
            agents = (0..self.selection.len()).filter(has_choice).collect();
        }
        agents.sort_by_key(|a| (domains.agents[*a].path_count, *a));
        for agent in agents.into_iter().take(2) {
            self.branchings.push((ConflictKind::Detour, self.split(agent)));
        }
    }

    /// Splits the paths of an agent by a node of the selected one, or by that very path where all use the same nodes.
    fn split(&self, agent: usize) -> Branching {
        let open = |node: &&u32| !self.domains.is_mandatory(self.model, agent, **node as usize);
        let path_count = |node: &u32| self.domains.paths_via[agent * self.model.nodes.len() + *node as usize];
        match self.path(agent).nodes.iter().filter(open).min_by_key(|n| (path_count(n), **n)) {
            Some(node) => visit(agent, *node as usize),
            None => {
                let decide = |takes: bool| Decision::Path(agent as u32, self.selection[agent].path as u32, takes);
                smallvec![decide(true), decide(false)]
            }
        }
    }
}

fn visit(agent: usize, node: usize) -> Branching {
    let decide = |visit: bool| Decision::Node(agent as u32, node as u32, visit);
    smallvec![decide(true), decide(false)]
}
