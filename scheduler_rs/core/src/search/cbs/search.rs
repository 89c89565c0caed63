//! The high level: takes nodes of the tree, finds their conflicts and opens their children.

use smallvec::{SmallVec, smallvec};

use crate::bound::lookahead::Lookahead;
use crate::budget::Budget;
use crate::route::RouteTask;
use crate::time::{NEVER, Time};

use super::choice::{Choice, choose, settle};
use super::conflict::{Branching, Cause, branchings};
use super::execution::{self, Found, Rule};
use super::model::Model;
use super::propagate::Propagator;
use super::state::{Dead, Decision, State};
use super::tree::{NodeId, Tree};
use super::{Answer, Ended, Question, Statistics};

/// Conflicts of a node for which the children are made before one is chosen.
const MOST_TRIED: usize = 6;
/// A phase that costs no more is followed by one twice as far up.
const CHEAP_PHASE: u64 = 50_000;
/// A phase that costs more has its root shaved.
const HARD_PHASE: u64 = 100_000;
/// Nodes of the tree, whatever the limits: about a quarter of a gigabyte.
const MOST_NODES: usize = 1_000_000;

/// See the [module](self).
pub struct Search<'a> {
    question: &'a Question<'a>,
    model: Model<'a>,
    budget: &'a Budget,
    propagator: Propagator<'a>,
    tree: Tree,
    root: State,
    /// What is looked for is below this: the question's limit, or where there are too many ways, a lower one.
    asked: Time,
    /// No execution takes less.
    proved: Time,
    /// Nodes of trees that are done with.
    closed_nodes: u64,
    /// Work done before the phase began.
    phase_start: u64,
    best: Option<Found>,
    /// Only iterations up to this one are of use.
    limit: Time,
    /// The least bound of nodes that had to be left without an answer.
    unresolved: Time,
    statistics: Statistics,
    /// The children opened last, laid open.
    fresh: Vec<(NodeId, State)>,
}

/// No execution takes less, even if no microbatch were in another one's way.
fn least_value(question: &Question<'_>, lookahead: &Lookahead) -> Time {
    let Question { instance, tasks, demand, .. } = *question;
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

/// All ways below the limit; where these are too many, all below a lower one, which is given as well.
fn model_within<'a>(
    question: &Question<'a>,
    lookahead: &Lookahead,
    least: Time,
    budget: &Budget,
    listed: &mut u64,
) -> Option<(Model<'a>, Time)> {
    let mut limit = question.limit.min(NEVER);
    for _ in 0..MOST_LIMITS {
        if let Some(model) = Model::new(question, lookahead, limit - 1, budget, listed) {
            return Some((model, if limit == NEVER { question.limit } else { limit }));
        }
        limit = least + (limit.min(4 * least) - least) / 2;
        if limit <= least || budget.is_over() {
            break;
        }
    }
    None
}

/// How often a lower limit is tried.
const MOST_LIMITS: usize = 12;

/// What became of a node.
enum Step {
    Done,
    Stopped,
}

impl<'a> Search<'a> {
    /// The whole search.
    pub fn run(question: &'a Question<'a>, lookahead: &Lookahead, budget: &'a Budget) -> Answer {
        let proved = least_value(question, lookahead).min(question.limit);
        let mut statistics = Statistics::default();
        let found = model_within(question, lookahead, proved, budget, &mut statistics.listed);
        let Some((model, asked)) = found else {
            return Answer { bound: proved, best: None, ended: Ended::Limit, statistics };
        };
        let limit = model.horizon(asked);
        let root = State::root(&model, limit);
        let mut search = Self {
            question,
            propagator: Propagator::new(&model, budget),
            tree: Tree::empty(question.suboptimality),
            asked,
            proved,
            closed_nodes: 0,
            phase_start: 0,
            model,
            budget,
            root,
            best: None,
            limit,
            unresolved: NEVER,
            statistics,
            fresh: Vec::new(),
        };
        let ended = search.go();
        search.answer(ended)
    }

    fn answer(mut self, ended: Ended) -> Answer {
        let is_whole = self.best.is_some() || self.asked == self.question.limit;
        let ended = if is_whole && self.unresolved >= self.known() { ended } else { Ended::Limit };
        self.statistics.labels = self.propagator.labels;
        self.statistics.nodes = self.nodes();
        Answer { bound: self.bound(), best: self.best, ended, statistics: self.statistics }
    }

    /// The best value so far, or what the question asks to be below.
    fn known(&self) -> Time {
        self.best.as_ref().map_or(self.asked, |b| b.value)
    }

    /// Nothing known to exist takes less.
    fn bound(&self) -> Time {
        self.tree.least().map_or(self.proved, |least| least.max(self.proved)).min(self.unresolved).min(self.known())
    }

    fn nodes(&self) -> u64 {
        self.closed_nodes + self.tree.len() as u64
    }

    /// In phases: the limit is first set a little above the bound, which makes short work of everything that is not
    /// near it, and then further and further, until something is found or nothing is left.
    fn go(&mut self) -> Ended {
        let last = self.limit;
        let Some(low) = self.destroy() else {
            self.proved = NEVER;
            return Ended::Exhausted;
        };
        self.proved = low;
        let mut step = ((last - low) / 8).min(low / 128).max(1);
        loop {
            self.limit = self.limit.min(low.max(self.proved).saturating_add(step)).min(self.known() - 1);
            if let Ended::Limit = self.phase() {
                return Ended::Limit;
            }
            let end = last.min(self.known() - 1);
            if self.limit >= end && self.tree.least().is_none() {
                self.proved = NEVER;
                return Ended::Exhausted;
            }
            if self.is_good_enough() {
                return Ended::Exhausted;
            }
            self.limit = end;
            // The further up, the harder: steps grow only while they cost little.
            let (before, cost) = (self.phase_start, self.work() - self.phase_start);
            step = match cost {
                _ if cost < CHEAP_PHASE || cost < before / 4 => 2 * step,
                _ if cost < before => step,
                _ => (step / 2).max(1),
            };
        }
    }

    /// Whether what is known is within the factor of the bound.
    fn is_good_enough(&self) -> bool {
        self.tree.within(self.bound()) >= self.known()
    }

    /// One tree, for iterations up to the limit.
    fn phase(&mut self) -> Ended {
        let target = self.limit;
        self.fresh.clear();
        self.phase_start = self.work();
        let mut state = State::root(&self.model, self.limit);
        if self.propagator.all(&self.model, &mut state).is_err() {
            self.plant(None);
        } else if self.propagator.is_stopped {
            return Ended::Limit;
        } else {
            let bound = state.bound(&self.model).max(self.proved);
            self.root = state;
            self.plant(Some(bound));
        }
        self.note();
        let mut is_shaved = false;
        while let Some(least) = self.tree.least() {
            if least > self.limit || self.is_good_enough() {
                break;
            }
            if self.is_over() {
                return Ended::Limit;
            }
            if self.work() > self.phase_start + HARD_PHASE && !std::mem::replace(&mut is_shaved, true) {
                self.shave();
            }
            let Some((id, bound)) = self.tree.take() else { break };
            if bound > self.limit {
                continue;
            }
            if let Step::Stopped = self.expand(id, bound) {
                self.unresolved = self.unresolved.min(bound);
                return Ended::Limit;
            }
            self.note();
        }
        if self.tree.least().is_none_or(|least| least > self.limit) {
            // Everything up to the target has been looked at.
            self.proved = self.proved.max(target.min(self.limit) + 1);
            self.plant(None);
        }
        Ended::Exhausted
    }

    /// Tries for every agent and node what follows if it goes there, and if it does not; what leads nowhere is taken
    /// off at the root, for the whole tree.
    fn shave(&mut self) {
        for agent in 0..self.model.agents.len() {
            for node in 0..self.model.nodes.len() {
                for visits in [true, false] {
                    let root = &self.root;
                    let is_open =
                        root.is_possible(&self.model, agent, node) && !root.is_forced(&self.model, agent, node);
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
                        self.plant(None);
                        return;
                    }
                    self.root = root;
                }
            }
        }
    }

    /// A new tree, of a root with this bound.
    fn plant(&mut self, bound: Option<Time>) {
        self.closed_nodes += self.tree.len() as u64;
        self.tree = match bound {
            Some(bound) => Tree::new(bound, self.question.suboptimality),
            None => Tree::empty(self.question.suboptimality),
        };
    }

    /// Ways tried and nodes made.
    fn work(&self) -> u64 {
        self.propagator.labels + self.nodes()
    }

    fn is_over(&self) -> bool {
        self.budget.is_over() || self.tree.len() >= MOST_NODES || self.work() >= self.question.work_limit
    }

    /// Remembers what has changed.
    fn note(&mut self) {
        self.proved = self.bound();
        let (upper, lower) = (self.best.as_ref().map_or(NEVER, |b| b.value), self.bound());
        let last = self.statistics.events.last();
        if last.is_none_or(|(_, u, l)| (*u, *l) != (upper, lower)) {
            self.statistics.events.push((self.work(), upper, lower));
        }
    }

    /// A first bound: the limit is brought down until propagation alone finds that nothing is left; none where that
    /// is so from the first.
    fn destroy(&mut self) -> Option<Time> {
        let mut state = State::root(&self.model, self.limit);
        self.propagator.all(&self.model, &mut state).ok()?;
        if self.propagator.is_stopped {
            return Some(self.proved);
        }
        let (mut low, mut high) = (state.bound(&self.model), self.limit + 1);
        while low < high && !self.is_over() {
            let middle = low + (high - low) / 2;
            let mut trial = state.clone();
            trial.limit = middle;
            if self.propagator.all(&self.model, &mut trial).is_err() {
                low = middle + 1;
            } else if self.propagator.is_stopped {
                break;
            } else {
                // What is gone at this limit is gone at every lower one.
                (high, state) = (middle, trial);
            }
        }
        Some(low)
    }

    /// The state of a node, none where nothing is left in it.
    fn state_of(&mut self, id: NodeId) -> Result<State, Dead> {
        let fresh = self.fresh.iter().position(|(node, _)| *node == id);
        let mut state = match fresh {
            Some(place) => self.fresh.swap_remove(place).1,
            None => {
                let mut state = self.root.clone();
                for decision in self.tree.decisions(id) {
                    state.apply(&self.model, decision, &mut self.propagator.dirty);
                }
                state.limit = Time::MIN;
                state
            }
        };
        if state.limit != self.limit {
            state.limit = self.limit;
            self.propagator.all(&self.model, &mut state)?;
        }
        Ok(state)
    }

    fn expand(&mut self, id: NodeId, bound: Time) -> Step {
        let Ok(mut state) = self.state_of(id) else { return Step::Done };
        self.fresh.clear();
        let mut implied: SmallVec<[Decision; 2]> = SmallVec::new();
        loop {
            if self.propagator.is_stopped || self.is_over() {
                return Step::Stopped;
            }
            let least = state.bound(&self.model).max(bound);
            let mut chosen = choose(&self.model, &state, self.limit - least);
            self.statistics.bypasses += chosen.iter().filter(|c| c.is_bypass).count() as u64;
            let settled = settle(&self.model, &state, &mut chosen);
            let (list, count) = branchings(&self.model, &state, &chosen, settled, least);
            if self.try_ways(&state, &chosen, count == 0) {
                if least > self.limit {
                    return Step::Done;
                }
                state.limit = self.limit;
                if self.propagator.all(&self.model, &mut state).is_err() {
                    return Step::Done;
                }
                continue;
            }
            if list.is_empty() {
                // The ways have no conflict, yet the simulator does not take them: tasks of no length in a circle.
                self.unresolved = self.unresolved.min(least);
                return Step::Done;
            }
            match self.branch(&state, &list) {
                Branched::Dead => return Step::Done,
                Branched::Stopped => return Step::Stopped,
                Branched::Implied(decision, next) => {
                    if let Decision::Order(first, second) = decision
                        && state.orders.contains(&(first, second))
                    {
                        // It stands already and yet did not part the two: this node would go on for ever.
                        self.unresolved = self.unresolved.min(least);
                        return Step::Done;
                    }
                    self.statistics.implied += 1;
                    implied.push(decision);
                    state = *next;
                }
                Branched::Children(cause, children) => {
                    self.open(id, &implied, cause, children, least);
                    return Step::Done;
                }
            }
        }
    }

    /// Runs the chosen ways, with or without conflicts; whether that brought a better execution.
    fn try_ways(&mut self, state: &State, chosen: &[Choice], clean: bool) -> bool {
        if !execution::keeps_rules(&self.model, chosen) {
            return false;
        }
        let rules: &[Rule] = if clean { &[Rule::Chosen, Rule::Urgent] } else { &[Rule::Urgent, Rule::Chosen] };
        let mut better = false;
        for rule in rules {
            if let Some(found) = execution::run(&self.model, chosen, &state.last, *rule)
                && found.value < self.known()
            {
                self.limit = self.limit.min(found.value - 1);
                self.best = Some(found);
                better = true;
            }
        }
        better
    }

    /// Makes the children for some of the conflicts and chooses the conflict whose children cost most.
    fn branch(&mut self, state: &State, list: &[(Cause, Branching)]) -> Branched {
        let mut best: Option<(Score, Cause, Children)> = None;
        for (cause, branching) in most_promising(&self.model, state, list) {
            let mut children = Vec::new();
            for decision in branching {
                let mut child = state.clone();
                child.apply(&self.model, *decision, &mut self.propagator.dirty);
                let result = self.propagator.run(&self.model, &mut child);
                if self.propagator.is_stopped {
                    return Branched::Stopped;
                }
                if result.is_ok() {
                    children.push((*decision, child));
                }
            }
            if children.len() <= 1 {
                return match children.pop() {
                    Some((decision, child)) => Branched::Implied(decision, Box::new(child)),
                    None => Branched::Dead,
                };
            }
            let score = score(&self.model, children.iter().map(|(_, state)| state));
            if best.as_ref().is_none_or(|(other, _, _)| score > *other) {
                best = Some((score, *cause, children));
            }
        }
        match best {
            Some((_, cause, children)) => Branched::Children(cause, children),
            None => Branched::Dead,
        }
    }

    fn open(&mut self, parent: NodeId, implied: &[Decision], cause: Cause, children: Children, bound: Time) {
        let statistics = &mut self.statistics;
        match cause {
            Cause::Quota => statistics.quota_conflicts += 1,
            Cause::Length => statistics.length_conflicts += 1,
            Cause::Memory => statistics.memory_conflicts += 1,
            Cause::Overlap => statistics.overlap_conflicts += 1,
            Cause::Detour => statistics.detours += 1,
        }
        statistics.cardinal += u64::from(children.iter().all(|(_, s)| s.bound(&self.model) > bound));
        for (decision, state) in children {
            let own = state.bound(&self.model).max(bound);
            let mut chosen = choose(&self.model, &state, self.limit - own);
            let settled = settle(&self.model, &state, &mut chosen);
            let (_, conflicts) = branchings(&self.model, &state, &chosen, settled, own);
            let decisions = implied.iter().copied().chain([decision]).collect();
            match self.tree.open(parent, decisions, own, conflicts as u32) {
                Some(id) => self.fresh.push((id, state)),
                None => self.statistics.duplicates += 1,
            }
        }
    }
}

/// What is left of a branching, laid open.
type Children = Vec<(Decision, State)>;

enum Branched {
    /// No child is left.
    Dead,
    /// The budget was over before that was clear.
    Stopped,
    /// One is.
    Implied(Decision, Box<State>),
    /// The children of one conflict.
    Children(Cause, Children),
}

/// The least bound of the children, the sum of their bounds, how few ways are left in them.
type Score = (Time, Time, std::cmp::Reverse<u32>);

fn score<'s>(model: &Model<'_>, children: impl Iterator<Item = &'s State>) -> Score {
    let mut score = (NEVER, 0, std::cmp::Reverse(0));
    for child in children {
        let bound = child.bound(model);
        score.0 = score.0.min(bound);
        score.1 += bound;
        score.2.0 += child.agents.iter().map(|a| a.ways).sum::<u32>();
    }
    score
}

/// A few of the conflicts: those that break a rule first, then those for which the children have least slack left.
fn most_promising<'l>(
    model: &Model<'_>,
    state: &State,
    list: &'l [(Cause, Branching)],
) -> SmallVec<[&'l (Cause, Branching); MOST_TRIED]> {
    let key = |(cause, branching): &(Cause, Branching)| {
        let slack = branching.iter().map(|decision| slack_after(model, state, *decision)).max().unwrap_or(NEVER);
        (*cause == Cause::Overlap || *cause == Cause::Memory, slack)
    };
    let mut order: Vec<((bool, Time), usize)> = list.iter().enumerate().map(|(i, b)| (key(b), i)).collect();
    order.sort_unstable();
    let mut chosen: SmallVec<[&(Cause, Branching); MOST_TRIED]> = smallvec![];
    for (_, place) in order {
        if chosen.len() < MOST_TRIED && !chosen.iter().any(|other| other.1 == list[place].1) {
            chosen.push(&list[place]);
        }
    }
    chosen
}

/// About the slack that a constraint leaves to those whom it concerns.
fn slack_after(model: &Model<'_>, state: &State, decision: Decision) -> Time {
    match decision {
        Decision::Order(first, second) => {
            let (first, second) = (first as usize, second as usize);
            let start = (state.head[first] + model.length[first]).max(state.head[second]);
            state.last[second] - model.length[second] - start
        }
        Decision::Node(agent, ..)
        | Decision::Stage(agent, ..)
        | Decision::Long(agent, _)
        | Decision::Way(agent, ..) => state.agents[agent as usize].slack,
    }
}
