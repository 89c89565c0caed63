//! The high level: expands nodes of the constraint tree, in phases of increasing limits.

use smallvec::{SmallVec, smallvec};

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::route::RouteTask;
use crate::time::{NEVER, Time};

use super::branching::{Branching, ConflictKind, branchings};
use super::domains::{Decision, Domains, Infeasible};
use super::interface::{Answer, Solution, Statistics, Subproblem, Termination};
use super::model::Model;
use super::path_selection::{SelectedPath, apply_precedences, select_paths};
use super::primal_heuristic::{self, DispatchRule};
use super::propagation::Propagator;
use super::tree::{NodeId, Tree};

/// Conflicts of a node whose children are evaluated before one is branched on.
const MAX_TRIED: usize = 6;
/// After a phase that costs less, the step of the limit doubles.
const CHEAP_PHASE: u64 = 50_000;
/// In a phase that costs more, the root is shaved.
const HARD_PHASE: u64 = 100_000;
/// Limit on tree nodes, which take about a quarter of a gigabyte.
const MAX_NODES: usize = 1_000_000;

/// See the [module](self).
pub struct TreeSearch<'a> {
    subproblem: &'a Subproblem<'a>,
    model: Model<'a>,
    budget: &'a Budget,
    propagator: Propagator<'a>,
    tree: Tree,
    root: Domains,
    /// Exclusive upper bound on the iteration time: that of the subproblem, or a lower one where there are too many
    /// paths.
    exclusive_limit: Time,
    /// Proved lower bound.
    proved_bound: Time,
    /// Nodes of the trees of earlier phases.
    closed_nodes: u64,
    /// Work done before the phase began.
    phase_start: u64,
    best: Option<Solution>,
    /// Inclusive upper bound on the iteration time in this phase.
    limit: Time,
    /// Least bound of the nodes that could not be resolved.
    unresolved: Time,
    statistics: Statistics,
    /// Domains of the children opened last.
    children: Vec<(NodeId, Domains)>,
}

/// Lower bound without any conflict: the longest of the agents' shortest round trips.
fn round_trip_bound(subproblem: &Subproblem<'_>, lookahead: &Lookahead) -> Time {
    let Subproblem { instance, tasks, demand, .. } = *subproblem;
    let trip = |task: &RouteTask| {
        if instance.classes[task.class].forced.is_some() {
            return 0;
        }
        let trips = (demand.short..=demand.long).map(|length| lookahead.round_trip(instance, task.source, length));
        let least = trips.min().unwrap_or(NEVER);
        if least >= NEVER { 0 } else { least * task.waves as Time }
    };
    let idle = instance.allreduce.iter().copied().max().unwrap_or(0);
    tasks.iter().map(trip).max().unwrap_or(0).max(idle)
}

/// The model of all paths below the subproblem's limit, or where there are too many, below the lower limit returned.
fn model_within<'a>(
    subproblem: &Subproblem<'a>,
    lookahead: &Lookahead,
    least: Time,
    budget: &Budget,
    listed: &mut u64,
) -> Option<(Model<'a>, Time)> {
    let mut limit = subproblem.limit.min(NEVER);
    for _ in 0..MAX_LIMITS {
        if let Some(model) = Model::new(subproblem, lookahead, limit - 1, budget, listed) {
            return Some((model, if limit == NEVER { subproblem.limit } else { limit }));
        }
        limit = least + (limit.min(4 * least) - least) / 2;
        if limit <= least || budget.is_over() {
            break;
        }
    }
    None
}

/// Limits tried.
const MAX_LIMITS: usize = 12;

/// How the expansion of a node ended.
enum Expansion {
    Done,
    Stopped,
}

impl<'a> TreeSearch<'a> {
    /// Runs the whole search.
    pub fn run(subproblem: &'a Subproblem<'a>, lookahead: &Lookahead, budget: &'a Budget) -> Answer {
        let proved_bound = round_trip_bound(subproblem, lookahead).min(subproblem.limit);
        let mut statistics = Statistics::default();
        let found = model_within(subproblem, lookahead, proved_bound, budget, &mut statistics.listed);
        let Some((model, exclusive_limit)) = found else {
            return Answer { bound: proved_bound, best: None, termination: Termination::Limit, statistics };
        };
        let limit = model.horizon(exclusive_limit);
        let root = Domains::root(&model, limit);
        let mut search = Self {
            subproblem,
            propagator: Propagator::new(&model, budget),
            tree: Tree::empty(subproblem.suboptimality),
            exclusive_limit,
            proved_bound,
            closed_nodes: 0,
            phase_start: 0,
            model,
            budget,
            root,
            best: None,
            limit,
            unresolved: NEVER,
            statistics,
            children: Vec::new(),
        };
        let termination = search.run_phases();
        search.answer(termination)
    }

    fn answer(mut self, termination: Termination) -> Answer {
        let is_whole = self.best.is_some() || self.exclusive_limit == self.subproblem.limit;
        let termination =
            if is_whole && self.unresolved >= self.upper_bound() { termination } else { Termination::Limit };
        self.statistics.path_evaluations = self.propagator.path_evaluations;
        self.statistics.nodes = self.nodes();
        Answer { bound: self.bound(), best: self.best, termination, statistics: self.statistics }
    }

    /// Value of the incumbent, else the exclusive limit.
    fn upper_bound(&self) -> Time {
        self.best.as_ref().map_or(self.exclusive_limit, |b| b.value)
    }

    /// Lower bound on all executions.
    fn bound(&self) -> Time {
        self.tree
            .least_bound()
            .map_or(self.proved_bound, |least| least.max(self.proved_bound))
            .min(self.unresolved)
            .min(self.upper_bound())
    }

    fn nodes(&self) -> u64 {
        self.closed_nodes + self.tree.len() as u64
    }

    /// Searches in phases: the limit starts a little above the lower bound, where propagation prunes best, and rises
    /// until a solution is found or the horizon is reached.
    fn run_phases(&mut self) -> Termination {
        let last = self.limit;
        let Some(low) = self.destructive_bound() else {
            self.proved_bound = NEVER;
            return Termination::Exhausted;
        };
        self.proved_bound = low;
        let mut step = ((last - low) / 8).min(low / 128).max(1);
        loop {
            self.limit = self.limit.min(low.max(self.proved_bound).saturating_add(step)).min(self.upper_bound() - 1);
            if let Termination::Limit = self.phase() {
                return Termination::Limit;
            }
            let end = last.min(self.upper_bound() - 1);
            if self.limit >= end && self.tree.least_bound().is_none() {
                self.proved_bound = NEVER;
                return Termination::Exhausted;
            }
            if self.is_within_tolerance() {
                return Termination::Exhausted;
            }
            self.limit = end;
            // Phases get harder with the limit: steps grow only while they are cheap.
            let (before, cost) = (self.phase_start, self.work() - self.phase_start);
            step = match cost {
                _ if cost < CHEAP_PHASE || cost < before / 4 => 2 * step,
                _ if cost < before => step,
                _ => (step / 2).max(1),
            };
        }
    }

    /// Whether the incumbent is within the suboptimality factor of the lower bound.
    fn is_within_tolerance(&self) -> bool {
        self.tree.within(self.bound()) >= self.upper_bound()
    }

    /// Searches one tree, for iterations up to the limit.
    fn phase(&mut self) -> Termination {
        let target = self.limit;
        self.children.clear();
        self.phase_start = self.work();
        let mut domains = Domains::root(&self.model, self.limit);
        if self.propagator.all(&self.model, &mut domains).is_err() {
            self.reset_tree(None);
        } else if self.propagator.is_stopped {
            return Termination::Limit;
        } else {
            let bound = domains.bound(&self.model).max(self.proved_bound);
            self.root = domains;
            self.reset_tree(Some(bound));
        }
        self.record_event();
        let mut is_shaved = false;
        while let Some(least) = self.tree.least_bound() {
            if least > self.limit || self.is_within_tolerance() {
                break;
            }
            if self.is_over() {
                return Termination::Limit;
            }
            if self.work() > self.phase_start + HARD_PHASE && !std::mem::replace(&mut is_shaved, true) {
                self.shave();
            }
            let Some((id, bound)) = self.tree.pop() else { break };
            if bound > self.limit {
                continue;
            }
            if let Expansion::Stopped = self.expand(id, bound) {
                self.unresolved = self.unresolved.min(bound);
                return Termination::Limit;
            }
            self.record_event();
        }
        if self.tree.least_bound().is_none_or(|least| least > self.limit) {
            // Nothing is left up to the target.
            self.proved_bound = self.proved_bound.max(target.min(self.limit) + 1);
            self.reset_tree(None);
        }
        Termination::Exhausted
    }

    /// Shaving (Martin and Shmoys 1996): propagates, for every agent and node, that it visits the node and that it does
    /// not. Where one of them fails, the root keeps the other.
    fn shave(&mut self) {
        for agent in 0..self.model.agents.len() {
            for node in 0..self.model.nodes.len() {
                for visits in [true, false] {
                    let root = &self.root;
                    let is_open =
                        root.is_possible(&self.model, agent, node) && !root.is_mandatory(&self.model, agent, node);
                    if !is_open {
                        continue;
                    }
                    let decide = |visits: bool| Decision::Node(agent as u32, node as u32, visits);
                    let mut trial = self.root.clone();
                    trial.apply(&self.model, decide(visits), &mut self.propagator.dirty);
                    if self.propagator.run(&self.model, &mut trial).is_ok() {
                        continue;
                    }
                    let mut root = self.root.clone();
                    root.apply(&self.model, decide(!visits), &mut self.propagator.dirty);
                    let result = self.propagator.run(&self.model, &mut root);
                    if self.propagator.is_stopped {
                        return;
                    }
                    if result.is_err() {
                        self.reset_tree(None);
                        return;
                    }
                    self.root = root;
                }
            }
        }
    }

    /// Starts a new tree: a root with this bound, or nothing.
    fn reset_tree(&mut self, bound: Option<Time>) {
        self.closed_nodes += self.tree.len() as u64;
        self.tree = match bound {
            Some(bound) => Tree::new(bound, self.subproblem.suboptimality),
            None => Tree::empty(self.subproblem.suboptimality),
        };
    }

    /// Path evaluations plus tree nodes.
    fn work(&self) -> u64 {
        self.propagator.path_evaluations + self.nodes()
    }

    /// Whether a limit of time, memory or work is reached.
    fn is_over(&self) -> bool {
        self.budget.is_over() || self.tree.len() >= MAX_NODES || self.work() >= self.subproblem.work_limit
    }

    /// Records a change of the incumbent or the bound.
    fn record_event(&mut self) {
        self.proved_bound = self.bound();
        let (upper, lower) = (self.best.as_ref().map_or(NEVER, |b| b.value), self.bound());
        let last = self.statistics.events.last();
        if last.is_none_or(|(_, u, l)| (*u, *l) != (upper, lower)) {
            self.statistics.events.push((self.work(), upper, lower));
        }
    }

    /// Destructive lower bound (Klein and Scholl 1999): the least limit that propagation alone cannot refute, by
    /// bisection; none where it refutes the initial limit.
    fn destructive_bound(&mut self) -> Option<Time> {
        let mut domains = Domains::root(&self.model, self.limit);
        self.propagator.all(&self.model, &mut domains).ok()?;
        if self.propagator.is_stopped {
            return Some(self.proved_bound);
        }
        let (mut low, mut high) = (domains.bound(&self.model), self.limit + 1);
        while low < high && !self.is_over() {
            let middle = low + (high - low) / 2;
            let mut trial = domains.clone();
            trial.limit = middle;
            if self.propagator.all(&self.model, &mut trial).is_err() {
                low = middle + 1;
            } else if self.propagator.is_stopped {
                break;
            } else {
                // Paths removed at this limit stay removed at every lower one.
                (high, domains) = (middle, trial);
            }
        }
        Some(low)
    }

    /// The propagated domains of a node.
    fn domains_of(&mut self, id: NodeId) -> Result<Domains, Infeasible> {
        let children = self.children.iter().position(|(node, _)| *node == id);
        let mut domains = match children {
            Some(index) => self.children.swap_remove(index).1,
            None => {
                let mut domains = self.root.clone();
                for decision in self.tree.decisions(id) {
                    domains.apply(&self.model, decision, &mut self.propagator.dirty);
                }
                domains.limit = Time::MIN;
                domains
            }
        };
        if domains.limit != self.limit {
            domains.limit = self.limit;
            self.propagator.all(&self.model, &mut domains)?;
        }
        Ok(domains)
    }

    /// Branches on a node until it has children, is solved or is refuted; single feasible children are followed at
    /// once.
    fn expand(&mut self, id: NodeId, bound: Time) -> Expansion {
        let Ok(mut domains) = self.domains_of(id) else { return Expansion::Done };
        self.children.clear();
        let mut implied: SmallVec<[Decision; 2]> = SmallVec::new();
        loop {
            if self.propagator.is_stopped || self.is_over() {
                return Expansion::Stopped;
            }
            let least = domains.bound(&self.model).max(bound);
            let mut selection = select_paths(&self.model, &domains, self.limit - least);
            self.statistics.bypasses += selection.iter().filter(|c| c.is_bypass).count() as u64;
            let is_consistent = apply_precedences(&self.model, &domains, &mut selection);
            let (list, count) = branchings(&self.model, &domains, &selection, is_consistent, least);
            if self.try_selection(&domains, &selection, count == 0) {
                if least > self.limit {
                    return Expansion::Done;
                }
                domains.limit = self.limit;
                if self.propagator.all(&self.model, &mut domains).is_err() {
                    return Expansion::Done;
                }
                continue;
            }
            if list.is_empty() {
                // The paths have no conflict, yet the simulator rejects them: tasks of length 0 in a cycle.
                self.unresolved = self.unresolved.min(least);
                return Expansion::Done;
            }
            match self.branch(&domains, &list) {
                BranchOutcome::Infeasible => return Expansion::Done,
                BranchOutcome::Stopped => return Expansion::Stopped,
                BranchOutcome::Implied(decision, next) => {
                    if let Decision::Order(first, second) = decision
                        && domains.precedences.contains(&(first, second))
                    {
                        // It holds already and yet does not separate the two: the loop would not end.
                        self.unresolved = self.unresolved.min(least);
                        return Expansion::Done;
                    }
                    self.statistics.implied += 1;
                    implied.push(decision);
                    domains = *next;
                }
                BranchOutcome::Children(kind, children) => {
                    self.open(id, &implied, kind, children, least);
                    return Expansion::Done;
                }
            }
        }
    }

    /// Applies the primal heuristic to the selected paths, with or without conflicts; whether the incumbent improved.
    fn try_selection(&mut self, domains: &Domains, selection: &[SelectedPath], clean: bool) -> bool {
        if !primal_heuristic::satisfies_cardinality(&self.model, selection) {
            return false;
        }
        let rules: &[DispatchRule] = if clean {
            &[DispatchRule::PlannedStart, DispatchRule::LatestEnd]
        } else {
            &[DispatchRule::LatestEnd, DispatchRule::PlannedStart]
        };
        let mut better = false;
        for rule in rules {
            if let Some(found) = primal_heuristic::dispatch(&self.model, selection, &domains.latest_end, *rule)
                && found.value < self.upper_bound()
            {
                self.limit = self.limit.min(found.value - 1);
                self.best = Some(found);
                better = true;
            }
        }
        better
    }

    /// Evaluates the children of the most promising conflicts and branches on the one with the highest bounds.
    fn branch(&mut self, domains: &Domains, list: &[(ConflictKind, Branching)]) -> BranchOutcome {
        let mut best: Option<(Score, ConflictKind, Children)> = None;
        for (kind, branching) in most_promising(&self.model, domains, list) {
            let mut children = Vec::new();
            for decision in branching {
                let mut child = domains.clone();
                child.apply(&self.model, *decision, &mut self.propagator.dirty);
                let result = self.propagator.run(&self.model, &mut child);
                if self.propagator.is_stopped {
                    return BranchOutcome::Stopped;
                }
                if result.is_ok() {
                    children.push((*decision, child));
                }
            }
            if children.len() <= 1 {
                return match children.pop() {
                    Some((decision, child)) => BranchOutcome::Implied(decision, Box::new(child)),
                    None => BranchOutcome::Infeasible,
                };
            }
            let score = score(&self.model, children.iter().map(|(_, domains)| domains));
            if best.as_ref().is_none_or(|(other, _, _)| score > *other) {
                best = Some((score, *kind, children));
            }
        }
        match best {
            Some((_, kind, children)) => BranchOutcome::Children(kind, children),
            None => BranchOutcome::Infeasible,
        }
    }

    /// Opens the children of a branching.
    fn open(&mut self, parent: NodeId, implied: &[Decision], kind: ConflictKind, children: Children, bound: Time) {
        let statistics = &mut self.statistics;
        match kind {
            ConflictKind::Quota => statistics.quota_conflicts += 1,
            ConflictKind::Length => statistics.length_conflicts += 1,
            ConflictKind::Memory => statistics.memory_conflicts += 1,
            ConflictKind::Overlap => statistics.overlap_conflicts += 1,
            ConflictKind::Detour => statistics.detours += 1,
        }
        statistics.cardinal += u64::from(children.iter().all(|(_, s)| s.bound(&self.model) > bound));
        for (decision, domains) in children {
            let own = domains.bound(&self.model).max(bound);
            let mut selection = select_paths(&self.model, &domains, self.limit - own);
            let is_consistent = apply_precedences(&self.model, &domains, &mut selection);
            let (_, conflicts) = branchings(&self.model, &domains, &selection, is_consistent, own);
            let decisions = implied.iter().copied().chain([decision]).collect();
            match self.tree.open(parent, decisions, own, conflicts as u32) {
                Some(id) => self.children.push((id, domains)),
                None => self.statistics.duplicates += 1,
            }
        }
    }
}

/// The feasible children of a branching.
type Children = Vec<(Decision, Domains)>;

/// What became of the branchings of a node.
enum BranchOutcome {
    /// No child is feasible.
    Infeasible,
    /// The budget ran out.
    Stopped,
    /// Exactly one is: its constraint follows.
    Implied(Decision, Box<Domains>),
    /// The children of one conflict.
    Children(ConflictKind, Children),
}

/// Minimum and sum of the children's bounds, then how few paths they have left.
type Score = (Time, Time, std::cmp::Reverse<u32>);

fn score<'s>(model: &Model<'_>, children: impl Iterator<Item = &'s Domains>) -> Score {
    let mut score = (NEVER, 0, std::cmp::Reverse(0));
    for child in children {
        let bound = child.bound(model);
        score.0 = score.0.min(bound);
        score.1 += bound;
        score.2.0 += child.agents.iter().map(|a| a.path_count).sum::<u32>();
    }
    score
}

/// A few of the conflicts: violated cardinality rules and detours first, then those whose children have least slack.
fn most_promising<'l>(
    model: &Model<'_>,
    domains: &Domains,
    list: &'l [(ConflictKind, Branching)],
) -> SmallVec<[&'l (ConflictKind, Branching); MAX_TRIED]> {
    let key = |(kind, branching): &(ConflictKind, Branching)| {
        let slack = branching.iter().map(|decision| slack_after(model, domains, *decision)).max().unwrap_or(NEVER);
        (*kind == ConflictKind::Overlap || *kind == ConflictKind::Memory, slack)
    };
    let mut order: Vec<((bool, Time), usize)> = list.iter().enumerate().map(|(i, b)| (key(b), i)).collect();
    order.sort_unstable();
    let mut promising: SmallVec<[&(ConflictKind, Branching); MAX_TRIED]> = smallvec![];
    for (_, i) in order {
        if promising.len() < MAX_TRIED && !promising.iter().any(|other| other.1 == list[i].1) {
            promising.push(&list[i]);
        }
    }
    promising
}

/// Estimate of the slack that a constraint leaves to its agents.
fn slack_after(model: &Model<'_>, domains: &Domains, decision: Decision) -> Time {
    match decision {
        Decision::Order(first, second) => {
            let (first, second) = (first as usize, second as usize);
            let start = (domains.earliest_start[first] + model.length[first]).max(domains.earliest_start[second]);
            domains.latest_end[second] - model.length[second] - start
        }
        Decision::Node(agent, ..)
        | Decision::Stage(agent, ..)
        | Decision::Class(agent, ..)
        | Decision::Long(agent, _)
        | Decision::Path(agent, ..) => domains.agents[agent as usize].slack,
    }
}
