//! Constraint propagation to a fixed point: the low level for each agent, then the constraints between agents.

use crate::budget::Budget;
use crate::route::StageSet;
use crate::time::{NEVER, Time};

use super::cardinality;
use super::cumulative;
use super::disjunctive::{self, Disjunctive};
use super::domains::{AgentDomain, Domains, Infeasible};
use super::model::Model;

/// Propagation with its working memory.
#[derive(Debug)]
pub struct Propagator<'a> {
    budget: &'a Budget,
    /// Whether the budget ran out before the fixed point: the domains must not be used then.
    pub is_stopped: bool,
    /// Agents whose paths have to be evaluated again.
    pub dirty: Vec<bool>,
    /// Nodes whose tasks have to be propagated again.
    nodes: Vec<bool>,
    earliest_start: Vec<Time>,
    latest_end: Vec<Time>,
    times: PathTimes,
    disjunctive: Disjunctive,
    /// Path evaluations: the measure of work.
    pub path_evaluations: u64,
}

/// Rounds after which propagation stops short of the fixed point, with domains that are valid but wider.
const MAX_ROUNDS: usize = 400;

impl<'a> Propagator<'a> {
    /// With working memory for a model.
    pub fn new(model: &Model<'_>, budget: &'a Budget) -> Self {
        Self {
            budget,
            is_stopped: false,
            dirty: vec![false; model.agents.len()],
            nodes: vec![false; model.nodes.len()],
            earliest_start: vec![0; model.op_count],
            latest_end: vec![0; model.op_count],
            times: PathTimes::default(),
            disjunctive: Disjunctive::default(),
            path_evaluations: 0,
        }
    }

    /// Propagates everything.
    pub fn all(&mut self, model: &Model<'_>, domains: &mut Domains) -> Result<(), Infeasible> {
        self.dirty.fill(true);
        self.nodes.fill(true);
        self.run(model, domains)
    }

    /// Propagates from the dirty agents on.
    pub fn run(&mut self, model: &Model<'_>, domains: &mut Domains) -> Result<(), Infeasible> {
        let result = self.rounds(model, domains);
        self.clear();
        result
    }

    fn clear(&mut self) {
        self.dirty.fill(false);
        self.nodes.fill(false);
    }

    fn rounds(&mut self, model: &Model<'_>, domains: &mut Domains) -> Result<(), Infeasible> {
        for _ in 0..MAX_ROUNDS {
            self.agents(model, domains)?;
            if self.is_stopped {
                return Ok(());
            }
            while cardinality::filter_paths(model, domains, &mut self.dirty)? {
                self.agents(model, domains)?;
                if self.is_stopped {
                    return Ok(());
                }
            }
            propagate_precedences(model, domains, &mut self.dirty);
            if model.is_held() {
                cumulative::propagate_symmetry(model, domains, &mut self.dirty)?;
            }
            for node in 0..model.nodes.len() {
                if std::mem::replace(&mut self.nodes[node], false) {
                    disjunctive::propagate_tasks(model, domains, node, &mut self.disjunctive, &mut self.dirty)?;
                    if model.is_held() {
                        cumulative::propagate_holdings(model, domains, node, &mut self.disjunctive, &mut self.dirty)?;
                    }
                }
            }
            if !self.dirty.iter().any(|d| *d) {
                return cardinality::check_stage_energy(model, domains);
            }
        }
        self.agents(model, domains)?;
        if self.is_stopped { Ok(()) } else { cardinality::check_stage_energy(model, domains) }
    }

    fn agents(&mut self, model: &Model<'_>, domains: &mut Domains) -> Result<(), Infeasible> {
        for agent in 0..model.agents.len() {
            if self.dirty[agent] {
                self.is_stopped |= self.budget.is_over();
                if self.is_stopped {
                    return Ok(());
                }
                self.agent(model, domains, agent)?;
            }
        }
        Ok(())
    }

    /// The low level: schedules every path left to an agent as early and as late as its windows allow, and removes
    /// those that do not fit. Waiting is free, so the earliest start of every task is optimal for a path.
    fn agent(&mut self, model: &Model<'_>, domains: &mut Domains, agent: usize) -> Result<(), Infeasible> {
        self.dirty[agent] = false;
        let node_count = model.nodes.len();
        let (base, ops) = (model.agents[agent].first_op, model.agents[agent].waves * model.width);
        self.earliest_start[base..base + ops].fill(NEVER);
        self.latest_end[base..base + ops].fill(-1);
        let before = domains.agents[agent];
        let row = agent * node_count;
        domains.paths_via[row..row + node_count].fill(0);
        domains.min_hold[row..row + node_count].fill(NEVER);
        let mut own = AgentDomain {
            path_count: 0,
            required_stages: StageSet::MAX,
            possible_stages: 0,
            classes: 0,
            visits: (u8::MAX, 0),
            slack: Time::MIN,
        };
        let first = model.agents[agent].first_word;
        for word in 0..model.paths(agent).len().div_ceil(64) {
            let mut bits = domains.candidates[first + word];
            while bits != 0 {
                let number = 64 * word + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.path_evaluations += model.agents[agent].waves as u64;
                let Some(slack) = schedule_path(model, domains, agent, number, &mut self.times) else {
                    domains.remove(model, agent, number);
                    continue;
                };
                self.widen(model, agent, number);
                let path = &model.paths(agent)[number];
                own.path_count += 1;
                own.required_stages &= path.stages;
                own.possible_stages |= path.stages;
                own.classes |= model.class_bit(path.stages);
                own.slack = own.slack.max(slack);
                let visits = path.nodes.len() as u8;
                own.visits = (own.visits.0.min(visits), own.visits.1.max(visits));
                for (node, hold) in path.nodes.iter().zip(&path.holds) {
                    domains.paths_via[row + *node as usize] += 1;
                    let least = &mut domains.min_hold[row + *node as usize];
                    *least = (*least).min(*hold);
                }
            }
        }
        if own.path_count == 0 {
            return Err(Infeasible);
        }
        let fewer = own.path_count != before.path_count;
        for op in base..base + ops {
            if domains.earliest_start[op] != self.earliest_start[op]
                || domains.latest_end[op] != self.latest_end[op]
                || fewer
            {
                domains.earliest_start[op] = self.earliest_start[op];
                domains.latest_end[op] = self.latest_end[op];
                self.nodes[model.node_of(agent, ((op - base) % model.width) as u32)] = true;
            }
        }
        domains.agents[agent] = own;
        Ok(())
    }

    /// Extends the agent's windows by those of the path scheduled last.
    fn widen(&mut self, model: &Model<'_>, agent: usize, number: usize) {
        let steps = &model.paths(agent)[number].steps;
        let mut at = 0;
        let mut ends = self.times.ends.iter().rev();
        for wave in 0..model.agents[agent].waves {
            let base = model.op(agent, wave, 0);
            for step in steps {
                let op = base + step.offset as usize;
                self.earliest_start[op] = self.earliest_start[op].min(self.times.starts[at]);
                self.latest_end[op] = self.latest_end[op].max(ends.next().copied().unwrap_or(NEVER));
                at += 1;
            }
        }
    }
}

/// Earliest and latest times of the tasks of one path.
#[derive(Debug, Default)]
pub struct PathTimes {
    /// Earliest starts, wave by wave.
    pub starts: Vec<Time>,
    /// Latest ends, from the last task back to the first.
    ends: Vec<Time>,
}

/// Schedules a path within its agent's windows: the minimum slack of its tasks between earliest and latest end, none
/// where one of them does not fit.
pub fn schedule_path(
    model: &Model<'_>,
    domains: &Domains,
    agent: usize,
    number: usize,
    times: &mut PathTimes,
) -> Option<Time> {
    let path = &model.paths(agent)[number];
    let waves = model.agents[agent].waves;
    times.starts.clear();
    let mut time = 0;
    for wave in 0..waves {
        let base = model.op(agent, wave, 0);
        for step in &path.steps {
            let op = base + step.offset as usize;
            let start = (time + step.travel).max(domains.release[op]);
            time = start + step.length;
            if time > domains.due[op] || time + step.allreduce > domains.limit {
                return None;
            }
            times.starts.push(start);
        }
        time += path.return_transfer;
    }
    let mut end = domains.limit;
    let mut slack = end - time;
    if slack < 0 {
        return None;
    }
    times.ends.clear();
    for wave in (0..waves).rev() {
        let base = model.op(agent, wave, 0);
        end -= path.return_transfer;
        for (i, step) in path.steps.iter().enumerate().rev() {
            let latest = end.min(domains.due[base + step.offset as usize]).min(domains.limit - step.allreduce);
            end = latest - step.length - step.travel;
            slack = slack.min(latest - times.starts[wave * path.steps.len() + i] - step.length);
            times.ends.push(latest);
        }
    }
    (slack >= 0).then_some(slack)
}

/// Propagates precedence constraints. Both operations are on every path left to their agents.
fn propagate_precedences(model: &Model<'_>, domains: &mut Domains, dirty: &mut [bool]) {
    for i in 0..domains.precedences.len() {
        let (first, second) = (domains.precedences[i].0 as usize, domains.precedences[i].1 as usize);
        let (one, other) = (model.agent_of[first] as usize, model.agent_of[second] as usize);
        let (from, until) =
            (domains.earliest_start[first] + model.length[first], domains.latest_end[second] - model.length[second]);
        domains.raise_release(second, other, from, dirty);
        domains.lower_due(first, one, until, dirty);
    }
}
