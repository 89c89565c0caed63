//! An order from keys: processors take their tasks by key, as soon as those before them and memory allow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{NO_TASK, OrderGraph};
use crate::simulate::TaskId;
use crate::time::Time;

impl OrderGraph {
    /// An order, as [`OrderGraph::order`] has it, in which of all tasks that could go next the one of the least key
    /// goes; none where microbatches end up waiting for each other's memory.
    pub fn listed(&mut self, key: impl Fn(TaskId) -> Time) -> Option<Vec<TaskId>> {
        let nodes = self.memory.len();
        let mut order = vec![NO_TASK; self.order.len()];
        let mut next: Vec<usize> = self.begin.iter().map(|begin| *begin as usize).collect();
        let mut held = vec![0; nodes];
        let mut blocked: Vec<Vec<TaskId>> = vec![Vec::new(); nodes];
        let mut open: BinaryHeap<Reverse<(Time, TaskId)>> =
            self.firsts.iter().map(|task| Reverse((key(*task), *task))).collect();
        self.work += 4 * self.order.len() as u64;
        while let Some(Reverse((_, task))) = open.pop() {
            let vertex = &self.vertices[task as usize];
            let (node, processor) = (vertex.node as usize, vertex.processor as usize);
            if vertex.holds > 0 && held[node] >= self.memory[node] {
                blocked[node].push(task);
                continue;
            }
            held[node] = held[node].wrapping_add_signed(vertex.holds);
            order[next[processor]] = task;
            next[processor] += 1;
            if vertex.after != NO_TASK {
                open.push(Reverse((key(vertex.after), vertex.after)));
            }
            if vertex.holds < 0 {
                open.extend(blocked[node].drain(..).map(|task| Reverse((key(task), task))));
            }
        }
        (!order.contains(&NO_TASK)).then_some(order)
    }
}
