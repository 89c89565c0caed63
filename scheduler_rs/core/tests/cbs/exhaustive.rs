//! The shortest iteration, by every choice of routes and every order.

use skippipe_core::problem::Instance;
use skippipe_core::route::RouteTask;
use skippipe_core::search::methods::cbs::VisitDemand;
use skippipe_core::time::Time;

use super::routes::{adds_up, routes};

/// One microbatch in the exhaustive search: tasks as (node, travel before, length, change of what is held, all-reduce).
struct Chain {
    tasks: Vec<(usize, Time, Time, i32, Option<Time>)>,
    return_transfer: Time,
    after: Option<usize>,
}

fn chains(instance: &Instance, tasks: &[RouteTask], chosen: &[&Vec<usize>]) -> Vec<Chain> {
    let mut chains = Vec::new();
    for (task, route) in tasks.iter().zip(chosen) {
        for wave in 0..task.waves {
            let mut chain = Vec::new();
            let mut last = task.source;
            for node in route.iter() {
                chain.push((*node, instance.transfer(last, *node), instance.forward(task.class, *node), 1, None));
                last = *node;
            }
            chain.push((
                task.source,
                instance.transfer(last, task.source),
                instance.loss(task.class, task.source),
                0,
                None,
            ));
            last = task.source;
            for node in route.iter().rev() {
                let reduce = instance.allreduce[instance.stage_of[*node]];
                let travel = instance.transfer(last, *node);
                chain.push((*node, travel, instance.backward(task.class, *node), -1, Some(reduce)));
                last = *node;
            }
            let after = (wave > 0).then(|| chains.len() - 1);
            chains.push(Chain { tasks: chain, return_transfer: instance.transfer(last, task.source), after });
        }
    }
    chains
}

/// Schedules of given routes, tasks appended in the order of their starts, each as early as it can be.
struct Orders<'a> {
    instance: &'a Instance,
    chains: Vec<Chain>,
    done: Vec<usize>,
    ready: Vec<Time>,
    free: Vec<Time>,
    held: Vec<i32>,
    best: Time,
    steps: usize,
}

impl Orders<'_> {
    fn go(&mut self, last: Time, so_far: Time) {
        if self.steps == 0 {
            return;
        }
        self.steps -= 1;
        let mut open = Vec::new();
        let mut is_done = true;
        for (c, chain) in self.chains.iter().enumerate() {
            if self.done[c] == chain.tasks.len() {
                continue;
            }
            is_done = false;
            let begin = match chain.after {
                Some(before) if self.done[c] == 0 => {
                    if self.done[before] < self.chains[before].tasks.len() {
                        continue;
                    }
                    self.ready[before] + self.chains[before].return_transfer
                }
                _ => self.ready[c],
            };
            let (node, travel, ..) = chain.tasks[self.done[c]];
            let start = (begin + travel).max(self.free[self.instance.processor(node)]);
            let rest: Time = chain.tasks[self.done[c]..].iter().map(|t| t.2).sum::<Time>()
                + chain.tasks[self.done[c] + 1..].iter().map(|t| t.1).sum::<Time>()
                + chain.return_transfer;
            if start + rest >= self.best {
                return;
            }
            open.push((start, c));
        }
        if is_done {
            self.best = self.best.min(so_far);
            return;
        }
        open.sort_unstable();
        for (start, c) in open {
            let (node, _, length, change, reduce) = self.chains[c].tasks[self.done[c]];
            let is_full = self.instance.memory_is_held() && self.held[node] >= self.instance.memory[node] as i32;
            if start < last || (change > 0 && is_full) {
                continue;
            }
            let processor = self.instance.processor(node);
            let before = (self.ready[c], self.free[processor]);
            let end = start + length;
            (self.ready[c], self.free[processor]) = (end, end);
            self.done[c] += 1;
            self.held[node] += change;
            let mut value = so_far.max(end + reduce.unwrap_or(0));
            if self.done[c] == self.chains[c].tasks.len() {
                value = value.max(end + self.chains[c].return_transfer);
            }
            if value < self.best {
                self.go(start, value);
            }
            self.held[node] -= change;
            self.done[c] -= 1;
            (self.ready[c], self.free[processor]) = before;
        }
    }
}

/// Steps of one exhaustive search; a problem that needs more is skipped.
const MOST_STEPS: usize = 3_000_000;

/// The shortest iteration below `limit` (without norm and optimizer), none where there is none. An error where that
/// takes too long to find out.
pub fn optimum(
    instance: &Instance,
    tasks: &[RouteTask],
    demand: &VisitDemand,
    limit: Time,
) -> Result<Option<Time>, ()> {
    let mut steps = MOST_STEPS;
    let options: Vec<Vec<Vec<usize>>> = tasks
        .iter()
        .map(|t| match &instance.classes[t.class].forced {
            Some(nodes) => vec![nodes.iter().map(|n| *n as usize).collect()],
            None => {
                let fits = |r: &Vec<usize>| (demand.short..=demand.long).contains(&r.len());
                routes(instance, t.source).into_iter().filter(fits).collect()
            }
        })
        .collect();
    let idle = instance.allreduce.iter().copied().max().unwrap_or(0);
    let mut best = limit;
    let mut choice = vec![0_usize; tasks.len()];
    if options.iter().any(Vec::is_empty) {
        return Ok(None);
    }
    loop {
        // Equal agents in ascending order of their routes: the others are the same but for numbers.
        let is_sorted = (1..tasks.len()).all(|i| {
            (tasks[i].source, tasks[i].waves, tasks[i].class)
                != (tasks[i - 1].source, tasks[i - 1].waves, tasks[i - 1].class)
                || choice[i - 1] <= choice[i]
        });
        let chosen: Vec<&Vec<usize>> = options.iter().zip(&choice).map(|(o, c)| &o[*c]).collect();
        if is_sorted && adds_up(instance, demand, &chosen) {
            let chains = chains(instance, tasks, &chosen);
            let count = chains.len();
            let n = instance.node_count();
            let mut orders = Orders {
                instance,
                chains,
                done: vec![0; count],
                ready: vec![0; count],
                free: vec![0; n],
                held: vec![0; n],
                best,
                steps,
            };
            if idle < best {
                orders.go(0, idle);
            }
            (best, steps) = (orders.best, orders.steps);
            if steps == 0 {
                return Err(());
            }
        }
        let Some(index) = (0..choice.len()).rev().find(|i| choice[*i] + 1 < options[*i].len()) else { break };
        choice[index] += 1;
        choice[index + 1..].fill(0);
    }
    Ok((best < limit).then_some(best))
}
