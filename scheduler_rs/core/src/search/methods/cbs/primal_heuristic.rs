//! Primal heuristic: schedules the selected paths task by task (serial schedule generation), whatever their conflicts,
//! and has the simulator run the order that results.

use crate::rules::MemoryRule;
use crate::simulate::{MicrobatchRoute, Simulator, TaskId};
use crate::time::Time;

use super::interface::{ClassDemand, Solution};
use super::model::Model;
use super::path_enumeration::CandidatePath;
use super::path_selection::SelectedPath;

/// Priority rule for the next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchRule {
    /// Earliest selected start; exact for paths without conflicts.
    PlannedStart,
    /// Active schedule (Giffler and Thompson 1960): on the processor of the task that would end first, the tasks that could
    /// start before that end compete, and the one with the earliest latest end wins.
    LatestEnd,
}

/// Whether the selected paths satisfy the rules on all routes together: quotas, classes, lengths, TC1 `routes`.
pub fn satisfies_cardinality(model: &Model<'_>, selection: &[SelectedPath]) -> bool {
    let demand = model.demand;
    let mut visits = vec![0; model.instance.stage_count()];
    let mut users = vec![0; model.nodes.len()];
    let (mut total, mut long) = (0, 0);
    for (agent, choice) in selection.iter().enumerate() {
        let path = &model.paths(agent)[choice.path];
        for node in &path.nodes {
            visits[model.stage_of[*node as usize]] += 1;
            users[*node as usize] += 1;
        }
        total += path.nodes.len();
        long += usize::from(path.nodes.len() > demand.short);
    }
    let within = |range: Option<(usize, usize)>, value: usize| range.is_none_or(|(a, b)| (a..=b).contains(&value));
    let quotas = model.instance.present.iter().all(|s| (demand.least[*s]..=demand.most[*s]).contains(&visits[*s]));
    let inner = || model.instance.present.iter().filter(|s| **s != 0).map(|s| visits[*s]);
    let even = !model.is_even || inner().max().unwrap_or(0) <= inner().min().unwrap_or(0) + 1;
    let room = model.instance.rules.tc1 != MemoryRule::Routes
        || users.iter().enumerate().all(|(node, count)| *count <= model.memory(node));
    let of_class = |class: &ClassDemand| {
        let is_of = |(agent, choice): &(usize, &SelectedPath)| model.paths(*agent)[choice.path].stages == class.stages;
        (class.least..=class.most).contains(&selection.iter().enumerate().filter(is_of).count())
    };
    let classes = demand.classes.iter().all(of_class);
    quotas && even && classes && room && within(demand.total, total) && within(demand.long_routes, long)
}

/// Schedules the selected paths by `rule`; none where microbatches deadlock on node memory. `latest_end` is that of
/// each operation.
pub fn dispatch(
    model: &Model<'_>,
    selection: &[SelectedPath],
    latest_end: &[Time],
    rule: DispatchRule,
) -> Option<Solution> {
    let mut microbatches = Vec::new();
    let mut first = Vec::new();
    let mut tasks = 0;
    for (agent, choice) in selection.iter().enumerate() {
        let task = &model.tasks[agent];
        let path = &model.paths(agent)[choice.path];
        first.push(tasks);
        for wave in 0..task.waves {
            let nodes = path.nodes.iter().map(|n| model.nodes[*n as usize] as u32).collect();
            let id = task.first_microbatch + wave;
            microbatches.push(MicrobatchRoute {
                id,
                source: task.source,
                route: agent,
                wave,
                class: task.class,
                nodes,
            });
            tasks += path.steps.len();
        }
    }
    let order = generate_schedule(model, selection, latest_end, rule, &first)?;
    let mut simulator = Simulator::new(model.instance);
    simulator.load(&microbatches);
    let outcome = simulator.run_order(&order).ok()?;
    Some(Solution { microbatches, order, value: outcome.iteration - model.instance.epilogue })
}

/// The next task of an agent.
#[derive(Clone, Copy, Debug)]
struct Next {
    node: usize,
    start: Time,
    length: Time,
    /// Tasks with a lower priority value go first.
    priority: (Time, Time, u8),
}

/// A partial schedule of the selected paths, built task by task.
struct Generator<'g> {
    model: &'g Model<'g>,
    selection: &'g [SelectedPath],
    latest_end: &'g [Time],
    rule: DispatchRule,
    /// Per agent, tasks scheduled, and when the next one's input can be sent.
    done: Vec<usize>,
    ready: Vec<Time>,
    /// Per processor, when it is free; per local node, microbatches held.
    free: Vec<Time>,
    held: Vec<usize>,
}

impl Generator<'_> {
    fn path(&self, agent: usize) -> &CandidatePath {
        &self.model.paths(agent)[self.selection[agent].path]
    }

    /// The next task of an agent; none where it has no more, or has to wait for memory.
    fn next(&self, agent: usize) -> Option<Next> {
        let (model, path) = (self.model, self.path(agent));
        let done = self.done[agent];
        let (wave, position) = (done / path.steps.len(), done % path.steps.len());
        if wave == model.agents[agent].waves {
            return None;
        }
        let step = &path.steps[position];
        let node = model.node_of(agent, step.offset);
        let hops = path.nodes.len();
        if model.is_held() && position < hops && self.held[node] >= model.memory(node) {
            return None;
        }
        let start = (self.ready[agent] + step.travel).max(self.free[model.processor(node)]);
        // Backwards before losses before forwards.
        let kind = if position > hops { 0 } else { u8::from(position < hops) + 1 };
        let priority = match self.rule {
            DispatchRule::PlannedStart => {
                let planned = self.selection[agent].starts[done];
                (planned, planned + step.length, kind)
            }
            DispatchRule::LatestEnd => (self.latest_end[model.op(agent, wave, step.offset)], start, kind),
        };
        Some(Next { node, start, length: step.length, priority })
    }

    /// The agent whose task the rule schedules next.
    fn choose(&self, waiting: &[Option<Next>]) -> Option<(usize, Next)> {
        let open = || waiting.iter().enumerate().filter_map(|(a, n)| n.map(|n| (a, n)));
        match self.rule {
            DispatchRule::PlannedStart => open().min_by_key(|(a, n)| (n.priority, *a)),
            DispatchRule::LatestEnd => {
                let (_, soonest) = open().min_by_key(|(a, n)| (n.start + n.length, n.start, *a))?;
                let until = (soonest.start + soonest.length).max(soonest.start + 1);
                open().filter(|(_, n)| self.share(n, &soonest) && n.start < until).min_by_key(|(a, n)| (n.priority, *a))
            }
        }
    }

    /// Whether two tasks are of one processor.
    fn share(&self, one: &Next, other: &Next) -> bool {
        self.model.processor(one.node) == self.model.processor(other.node)
    }

    /// Appends an agent's next task.
    fn schedule(&mut self, agent: usize, task: Next) {
        let path = self.path(agent);
        let (hops, last, return_transfer) = (path.nodes.len(), path.steps.len() - 1, path.return_transfer);
        let position = self.done[agent] % path.steps.len();
        self.free[self.model.processor(task.node)] = task.start + task.length;
        self.ready[agent] = task.start + task.length + if position == last { return_transfer } else { 0 };
        if position < hops {
            self.held[task.node] += 1;
        } else if position > hops {
            self.held[task.node] -= 1;
        }
        self.done[agent] += 1;
    }
}

/// Task order of every processor; none on a deadlock. `first` is the number of each agent's first task.
fn generate_schedule(
    model: &Model<'_>,
    selection: &[SelectedPath],
    latest_end: &[Time],
    rule: DispatchRule,
    first: &[usize],
) -> Option<Vec<Vec<TaskId>>> {
    let (count, nodes) = (selection.len(), model.nodes.len());
    let mut partial = Generator {
        model,
        selection,
        latest_end,
        rule,
        done: vec![0; count],
        ready: vec![0; count],
        free: vec![0; nodes],
        held: vec![0; nodes],
    };
    let mut order = vec![Vec::new(); model.instance.node_count()];
    let mut waiting: Vec<Option<Next>> = (0..count).map(|a| partial.next(a)).collect();
    let total: usize = (0..count).map(|a| model.agents[a].waves * partial.path(a).steps.len()).sum();
    for _ in 0..total {
        let (agent, task) = partial.choose(&waiting)?;
        order[model.instance.processor(model.nodes[task.node])].push((first[agent] + partial.done[agent]) as TaskId);
        partial.schedule(agent, task);
        for (other, next) in waiting.iter_mut().enumerate() {
            // Only these can have changed.
            if other == agent || next.is_none_or(|n| partial.share(&n, &task)) {
                *next = partial.next(other);
            }
        }
    }
    Some(order)
}
