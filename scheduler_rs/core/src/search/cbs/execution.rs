//! From chosen ways to an execution: nodes take their tasks one after the other, and the simulator says how long that
//! takes.

use crate::rules::MemoryRule;
use crate::simulate::{MicrobatchRoute, Simulator, TaskId};
use crate::time::Time;

use super::choice::Choice;
use super::model::Model;

/// An execution and how long it takes (norm and optimizer left out).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The microbatches, those of one task next to each other; `route` is the number of the task.
    pub batches: Vec<MicrobatchRoute>,
    /// What every node runs, in the simulator's numbers for these.
    pub order: Vec<Vec<TaskId>>,
    /// Nanoseconds.
    pub value: Time,
}

/// By what a node chooses among the tasks that it could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The starts that the agents have chosen; good for ways without conflicts.
    Chosen,
    /// The latest ends, among those that could start before the first of them would be done.
    Urgent,
}

/// Whether the chosen ways keep what concerns all of them: quotas, lengths, TC1 `routes`.
pub fn keeps_rules(model: &Model<'_>, chosen: &[Choice]) -> bool {
    let demand = model.demand;
    let mut visits = vec![0; model.instance.stage_count()];
    let mut users = vec![0; model.nodes.len()];
    let (mut total, mut long) = (0, 0);
    for (agent, choice) in chosen.iter().enumerate() {
        let way = &model.ways(agent)[choice.way];
        for node in &way.nodes {
            visits[model.stage_of[*node as usize]] += 1;
            users[*node as usize] += 1;
        }
        total += way.nodes.len();
        long += usize::from(way.nodes.len() > demand.short);
    }
    let within = |range: Option<(usize, usize)>, value: usize| range.is_none_or(|(a, b)| (a..=b).contains(&value));
    let quotas = model.instance.present.iter().all(|s| (demand.least[*s]..=demand.most[*s]).contains(&visits[*s]));
    let inner = || model.instance.present.iter().filter(|s| **s != 0).map(|s| visits[*s]);
    let even = !model.is_even || inner().max().unwrap_or(0) <= inner().min().unwrap_or(0) + 1;
    let room = model.instance.rules.tc1 != MemoryRule::Routes
        || users.iter().enumerate().all(|(node, count)| *count <= model.memory(node));
    quotas && even && room && within(demand.total, total) && within(demand.long_routes, long)
}

/// Runs the chosen ways by `rule`; none where microbatches end up waiting for each other's memory. `urgency` is
/// the latest end of each slot.
pub fn run(model: &Model<'_>, chosen: &[Choice], urgency: &[Time], rule: Rule) -> Option<Found> {
    let mut batches = Vec::new();
    let mut first = Vec::new();
    let mut tasks = 0;
    for (agent, choice) in chosen.iter().enumerate() {
        let task = &model.tasks[agent];
        let way = &model.ways(agent)[choice.way];
        first.push(tasks);
        for wave in 0..task.waves {
            let nodes = way.nodes.iter().map(|n| model.nodes[*n as usize] as u32).collect();
            let id = task.first_microbatch + wave;
            batches.push(MicrobatchRoute { id, source: task.source, route: agent, wave, class: task.class, nodes });
            tasks += way.steps.len();
        }
    }
    let order = take_turns(model, chosen, urgency, rule, &first)?;
    let mut simulator = Simulator::new(model.instance);
    simulator.load(&batches);
    let outcome = simulator.run_order(&order).ok()?;
    Some(Found { batches, order, value: outcome.iteration - model.instance.epilogue })
}

/// The next task of an agent.
#[derive(Clone, Copy, Debug)]
struct Next {
    node: usize,
    start: Time,
    length: Time,
    /// What is started of that which can be.
    rank: (Time, Time, u8),
}

fn take_turns(
    model: &Model<'_>,
    chosen: &[Choice],
    urgency: &[Time],
    rule: Rule,
    first: &[usize],
) -> Option<Vec<Vec<TaskId>>> {
    let count = chosen.len();
    let (mut done, mut ready) = (vec![0_usize; count], vec![0 as Time; count]);
    let mut free = vec![0 as Time; model.nodes.len()];
    let mut held = vec![0_usize; model.nodes.len()];
    let mut order = vec![Vec::new(); model.instance.node_count()];
    let gated = model.is_held();
    let next = |agent: usize, done: &[usize], ready: &[Time], free: &[Time], held: &[usize]| {
        let way = &model.ways(agent)[chosen[agent].way];
        let (wave, place) = (done[agent] / way.steps.len(), done[agent] % way.steps.len());
        if wave == model.agents[agent].waves {
            return None;
        }
        let step = &way.steps[place];
        let node = model.node_of(agent, step.op);
        let hops = way.nodes.len();
        if gated && place < hops && held[node] >= model.memory(node) {
            return None;
        }
        let slot = model.slot(agent, wave, step.op);
        let start = (ready[agent] + step.travel).max(free[node]);
        let kind = if place > hops { 0 } else { u8::from(place < hops) + 1 };
        let rank = match rule {
            Rule::Chosen => (chosen[agent].starts[done[agent]], chosen[agent].starts[done[agent]] + step.length, kind),
            Rule::Urgent => (urgency[slot], start, kind),
        };
        Some(Next { node, start, length: step.length, rank })
    };
    let mut waiting: Vec<Option<Next>> = (0..count).map(|a| next(a, &done, &ready, &free, &held)).collect();
    let total: usize = (0..count).map(|a| model.agents[a].waves * model.ways(a)[chosen[a].way].steps.len()).sum();
    for _ in 0..total {
        let open = || waiting.iter().enumerate().filter_map(|(a, n)| n.map(|n| (a, n)));
        let (agent, task) = match rule {
            Rule::Chosen => open().min_by_key(|(a, n)| (n.rank, *a))?,
            Rule::Urgent => {
                let (_, soonest) = open().min_by_key(|(a, n)| (n.start + n.length, n.start, *a))?;
                let until = (soonest.start + soonest.length).max(soonest.start + 1);
                open().filter(|(_, n)| n.node == soonest.node && n.start < until).min_by_key(|(a, n)| (n.rank, *a))?
            }
        };
        let way = &model.ways(agent)[chosen[agent].way];
        let place = done[agent] % way.steps.len();
        order[model.nodes[task.node]].push((first[agent] + done[agent]) as TaskId);
        free[task.node] = task.start + task.length;
        ready[agent] = free[task.node] + if place + 1 == way.steps.len() { way.return_transfer } else { 0 };
        if place < way.nodes.len() {
            held[task.node] += 1;
        } else if place > way.nodes.len() {
            held[task.node] -= 1;
        }
        done[agent] += 1;
        for (a, slot) in waiting.iter_mut().enumerate() {
            // Only these can have changed.
            if a == agent || slot.is_none_or(|n| n.node == task.node) {
                *slot = next(a, &done, &ready, &free, &held);
            }
        }
    }
    Some(order)
}
