//! One path for each agent, selected so that few of them conflict.

use crate::route::stage_bit;
use crate::rules::MemoryRule;
use crate::time::Time;

use super::domains::Domains;
use super::model::Model;
use super::path_enumeration::CandidatePath;
use super::propagation::{PathTimes, schedule_path};

/// Options compared for one agent: those with the most slack.
const MAX_OPTIONS: usize = 40;
/// Passes of coordinate descent.
const PASSES: usize = 3;
/// A violated rule costs as much as this many overlaps.
const VIOLATION_COST: i32 = 4;

/// A path selected for an agent, with start times.
#[derive(Clone, Debug, Default)]
pub struct SelectedPath {
    /// Index among the agent's candidate paths.
    pub path: usize,
    /// Starts of its tasks, wave by wave.
    pub starts: Vec<Time>,
    /// By how much the limit could be lower.
    pub slack: Time,
    /// Whether another path of the agent has more slack.
    pub is_bypass: bool,
}

/// A task of a selected path.
#[derive(Clone, Copy, Debug)]
pub struct TaskInterval {
    /// Start.
    pub start: Time,
    /// End.
    pub end: Time,
    /// Agent.
    pub agent: usize,
    /// Its operation.
    pub op: usize,
}

impl TaskInterval {
    /// Whether the two overlap; a task of length 0 needs an idle node, too.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.end > other.start && other.end > self.start
    }
}

/// Selects a path with at least `slack` for each agent: greedily, then improved by coordinate descent over the agents,
/// so that together they have few conflicts (a bypass in the sense of Boyarski et al. 2015: no path exceeds the bound).
pub fn select_paths(model: &Model<'_>, domains: &Domains, slack: Time) -> Vec<SelectedPath> {
    let mut options: Vec<Vec<SelectedPath>> = Vec::new();
    let mut times = PathTimes::default();
    for agent in 0..model.agents.len() {
        let mut own: Vec<SelectedPath> = Vec::new();
        for path in domains.paths(model, agent) {
            if let Some(found) = schedule_path(model, domains, agent, path, &mut times)
                && found >= slack
            {
                own.push(SelectedPath { path, starts: times.starts.clone(), slack: found, is_bypass: false });
            }
        }
        own.sort_by_key(|c| (std::cmp::Reverse(c.slack), c.path));
        own.truncate(MAX_OPTIONS);
        options.push(own);
    }
    let mut table = SelectionTable::new(model);
    let mut selection: Vec<usize> = Vec::new();
    for (agent, own) in options.iter().enumerate() {
        let best = table.best(model, agent, own, true);
        table.add(model, agent, &own[best], 1);
        selection.push(best);
    }
    for _ in 0..PASSES {
        let mut changed = false;
        for (agent, own) in options.iter().enumerate().filter(|(_, own)| own.len() > 1) {
            table.add(model, agent, &own[selection[agent]], -1);
            let best = table.best(model, agent, own, false);
            changed |= best != selection[agent];
            selection[agent] = best;
            table.add(model, agent, &own[best], 1);
        }
        if !changed {
            break;
        }
    }
    let take = |(mut own, best): (Vec<SelectedPath>, usize)| {
        let is_bypass = own[best].slack < own[0].slack;
        SelectedPath { is_bypass, ..own.swap_remove(best) }
    };
    options.into_iter().zip(selection).map(take).collect()
}

/// What the selected paths use: task intervals of each processor, routes of each node and stage, lengths.
struct SelectionTable {
    runs: Vec<Vec<TaskInterval>>,
    visits: Vec<i32>,
    /// Routes of each class.
    classes: Vec<i32>,
    users: Vec<i32>,
    long: i32,
    total: i32,
}

impl SelectionTable {
    fn new(model: &Model<'_>) -> Self {
        let nodes = model.nodes.len();
        let stages = model.instance.stage_count();
        Self {
            runs: vec![Vec::new(); nodes],
            visits: vec![0; stages],
            classes: vec![0; model.demand.classes.len()],
            users: vec![0; nodes],
            long: 0,
            total: 0,
        }
    }

    fn add(&mut self, model: &Model<'_>, agent: usize, choice: &SelectedPath, sign: i32) {
        let path = &model.paths(agent)[choice.path];
        for node in &path.nodes {
            self.visits[model.stage_of[*node as usize]] += sign;
            self.users[*node as usize] += sign;
        }
        for (count, class) in self.classes.iter_mut().zip(&model.demand.classes) {
            *count += sign * i32::from(class.stages == path.stages);
        }
        self.total += sign * path.nodes.len() as i32;
        self.long += sign * i32::from(path.nodes.len() > model.demand.short);
        if sign < 0 {
            for node in path.nodes.iter().map(|n| *n as usize).chain([model.agents[agent].source]) {
                self.runs[model.processor(node)].retain(|r| r.agent != agent);
            }
            return;
        }
        for (node, run) in task_intervals(model, agent, choice) {
            self.runs[model.processor(node)].push(run);
        }
    }

    /// The option with the least cost, by violated rules and overlaps; the first of several, which has the most slack.
    fn best(&self, model: &Model<'_>, agent: usize, options: &[SelectedPath], first: bool) -> usize {
        let (mut least, mut best) = (i32::MAX, 0);
        for (number, choice) in options.iter().enumerate() {
            let mut cost = VIOLATION_COST * self.violations(model, &model.paths(agent)[choice.path], first);
            for (node, run) in task_intervals(model, agent, choice) {
                if cost >= least {
                    break;
                }
                cost += self.runs[model.processor(node)].iter().filter(|r| r.overlaps(&run)).count() as i32;
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

    /// By how much quotas, classes, lengths and memory are violated with this path added; minima only once all agents have one.
    fn violations(&self, model: &Model<'_>, path: &CandidatePath, first: bool) -> i32 {
        let demand = model.demand;
        let mut violations = 0;
        for stage in model.instance.present.iter().copied() {
            let count = self.visits[stage] + i32::from(path.stages & stage_bit(stage) != 0);
            violations += (count - demand.most[stage].min(1 << 20) as i32).max(0);
            if !first {
                violations += (demand.least[stage] as i32 - count).max(0);
            }
        }
        for (count, class) in self.classes.iter().zip(&demand.classes) {
            let count = count + i32::from(class.stages == path.stages);
            violations += (count - class.most as i32).max(0);
            if !first {
                violations += (class.least as i32 - count).max(0);
            }
        }
        if !first && let Some((least, most)) = demand.total {
            let total = self.total + path.nodes.len() as i32;
            violations += (least as i32 - total).max(total - most as i32).max(0);
        }
        if !first && let Some((least, most)) = demand.long_routes {
            let long = self.long + i32::from(path.nodes.len() > demand.short);
            violations += (least as i32 - long).max(long - most as i32).max(0);
        }
        if model.instance.rules.tc1 == MemoryRule::Routes {
            for node in &path.nodes {
                violations += (self.users[*node as usize] + 1 - model.memory(*node as usize) as i32).max(0);
            }
        }
        violations
    }
}

/// The tasks of a selected path, with their local nodes.
pub fn task_intervals<'m>(
    model: &'m Model<'_>,
    agent: usize,
    choice: &'m SelectedPath,
) -> impl Iterator<Item = (usize, TaskInterval)> + 'm {
    let steps = &model.paths(agent)[choice.path].steps;
    choice.starts.chunks(steps.len()).enumerate().flat_map(move |(wave, starts)| {
        steps.iter().zip(starts).map(move |(step, start)| {
            let op = model.op(agent, wave, step.offset);
            (model.node_of(agent, step.offset), TaskInterval { start: *start, end: *start + step.length, agent, op })
        })
    })
}

/// Delays the selected paths until they satisfy all precedence constraints, every task as early as possible. False
/// where there is no such schedule: with these paths the constraints form a cycle.
pub fn apply_precedences(model: &Model<'_>, domains: &Domains, selection: &mut [SelectedPath]) -> bool {
    let mut release = domains.release.clone();
    let mut index = vec![usize::MAX; model.op_count];
    for (agent, choice) in selection.iter().enumerate() {
        let steps = &model.paths(agent)[choice.path].steps;
        for at in 0..choice.starts.len() {
            index[model.op(agent, at / steps.len(), steps[at % steps.len()].offset)] = at;
        }
    }
    let mut moved = vec![false; selection.len()];
    for _ in 0..domains.precedences.len() + selection.len() + 1 {
        for (first, second) in &domains.precedences {
            let (first, second) = (*first as usize, *second as usize);
            let other = model.agent_of[second] as usize;
            let end = selection[model.agent_of[first] as usize].starts[index[first]] + model.length[first];
            if end > release[second] {
                release[second] = end;
                moved[other] |= end > selection[other].starts[index[second]];
            }
        }
        if !moved.iter().any(|m| *m) {
            return true;
        }
        for (agent, moved) in moved.iter_mut().enumerate().filter(|(_, moved)| **moved) {
            *moved = false;
            left_shift(model, agent, &mut selection[agent], &release);
        }
    }
    false
}

/// Starts all tasks of a path as early as possible.
fn left_shift(model: &Model<'_>, agent: usize, choice: &mut SelectedPath, release: &[Time]) {
    let path = &model.paths(agent)[choice.path];
    let mut time = 0;
    for (at, start) in choice.starts.iter_mut().enumerate() {
        let (wave, step) = (at / path.steps.len(), &path.steps[at % path.steps.len()]);
        if at > 0 && at % path.steps.len() == 0 {
            time += path.return_transfer;
        }
        *start = (time + step.travel).max(release[model.op(agent, wave, step.offset)]);
        time = *start + step.length;
    }
}

/// Completion time of an agent, the all-reduce of its stages included.
pub fn completion(model: &Model<'_>, agent: usize, choice: &SelectedPath) -> Time {
    let path = &model.paths(agent)[choice.path];
    let from = choice.starts.len() - path.steps.len();
    let ends = path.steps.iter().zip(&choice.starts[from..]).map(|(step, start)| start + step.length + step.allreduce);
    let last = choice.starts.last().map_or(0, |start| start + path.steps[path.steps.len() - 1].length);
    ends.max().unwrap_or(0).max(last + path.return_transfer)
}
