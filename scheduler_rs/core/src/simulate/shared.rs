//! Simulation of a plan whose nodes share processors, such as those that one process serves.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Replay, Simulator, TaskId};
use crate::error::{Result, invalid};
use crate::plan::Plan;
use crate::problem::Instance;
use crate::time::{Rounding, seconds};

/// Seconds of an iteration where each processor runs the tasks of its nodes one at a time, in the order of their
/// planned starts, as the runtime does. Nodes of one processor exchange nothing; its replicas of a stage are one.
///
/// # Errors
/// [`crate::Error::Invalid`] where `processor_of` has not one entry for each node, [`crate::Error::Deadlock`] where
/// the plan's order cannot be executed.
pub fn iteration_on_processors(plan: &Plan, processor_of: &[usize]) -> Result<f64> {
    let problem = plan.problem()?;
    let mut instance = Instance::new(&problem, Rounding::Up);
    let nodes = instance.node_count();
    if processor_of.len() != nodes {
        return invalid("processor_of", processor_of.len(), format!("an entry for each of the {nodes} nodes"));
    }
    for (stage, members) in problem.stages().iter().enumerate() {
        let mut replicas: Vec<usize> = Vec::new();
        for node in members {
            if replicas.iter().all(|other| processor_of[*other] != processor_of[*node]) {
                replicas.push(*node);
            }
        }
        instance.allreduce[stage] = Rounding::Up.nanoseconds(problem.cluster().allreduce_s(stage, &replicas));
    }
    let replay = Replay::new(plan, &instance)?;
    let mut simulator = Simulator::new(&instance);
    simulator.load(replay.microbatches());
    simulator.run_order(&replay.order).map_err(|deadlock| simulator.error_of(&deadlock))?;
    let sequences = simulator.merged(&replay, processor_of);
    simulator.drop_local_transfers(processor_of);
    let outcome = simulator.run_sequences(&sequences).map_err(|deadlock| simulator.error_of(&deadlock))?;
    Ok(seconds(outcome.iteration))
}

impl Simulator<'_> {
    /// The tasks of each processor as the runtime merges them: by their starts in the last run, of equal ones as the
    /// plan lists them, but none before the one that it follows in its microbatch or on its node.
    fn merged(&self, replay: &Replay, processor_of: &[usize]) -> Vec<Vec<TaskId>> {
        let mut index_of = vec![0; replay.listed.len()];
        for (index, task) in replay.listed.iter().enumerate() {
            index_of[*task as usize] = index;
        }
        let mut done = vec![false; index_of.len()];
        let mut next = vec![0; replay.order.len()];
        let mut ready = BinaryHeap::new();
        // Offers the next task of a node, if the one before it in its microbatch is done.
        let offer = |node: usize, next: &[usize], done: &[bool], ready: &mut BinaryHeap<_>| {
            let Some(task) = replay.order[node].get(next[node]).copied() else { return };
            let first = self.spans[self.microbatch_of(task)].first;
            if task == first || done[task as usize - 1] {
                ready.push(Reverse((self.start[task as usize], index_of[task as usize], node, task)));
            }
        };
        for node in 0..replay.order.len() {
            offer(node, &next, &done, &mut ready);
        }
        let mut sequences = vec![Vec::new(); processor_of.iter().max().map_or(0, |most| most + 1)];
        while let Some(Reverse((_, _, node, task))) = ready.pop() {
            sequences[processor_of[node]].push(task);
            done[task as usize] = true;
            next[node] += 1;
            offer(node, &next, &done, &mut ready);
            let span = self.spans[self.microbatch_of(task)];
            if task < span.first + 2 * span.hops {
                let other = self.node_of(task + 1);
                if other != node && replay.order[other].get(next[other]) == Some(&(task + 1)) {
                    offer(other, &next, &done, &mut ready);
                }
            }
        }
        sequences
    }

    /// What stays on a processor takes no time to transfer.
    fn drop_local_transfers(&mut self, processor_of: &[usize]) {
        for span in &mut self.spans {
            let last = span.first + 2 * span.hops;
            for task in span.first + 1..=last {
                if processor_of[self.node[task as usize] as usize]
                    == processor_of[self.node[task as usize - 1] as usize]
                {
                    self.travel[task as usize] = 0;
                }
            }
            let source = self.node[(span.first + span.hops) as usize] as usize;
            if processor_of[source] == processor_of[self.node[span.first as usize] as usize] {
                self.travel[span.first as usize] = 0;
                (span.out, span.return_transfer) = (0, 0);
            }
        }
    }
}
