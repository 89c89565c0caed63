//! Simulation under the dispatch rule of the strategies that do not plan an order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Deadlock, NO_TASK, Outcome, Simulator, TaskId};
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Time, then what happens: twice the task, plus one where the task ends rather than its input arrives.
    events: BinaryHeap<Reverse<(Time, u32)>>,
    nodes: Vec<NodeState>,
    touched: Vec<u32>,
}

/// What goes first: arrival or priority, then the microbatch's id, then the task.
type Waiting = (Time, usize, TaskId);

#[derive(Clone, Debug, Default)]
struct NodeState {
    busy: bool,
    touched: bool,
    /// Microbatches that the node holds.
    held: u32,
    /// Backwards and losses, and forwards, whose input has arrived.
    urgent: Vec<Waiting>,
    forwards: Vec<Waiting>,
    /// What it ran, in order.
    ran: Vec<TaskId>,
}

impl NodeState {
    /// The forward at `index` of its queue, which is held from now on.
    fn start_forward(&mut self, index: usize) -> TaskId {
        self.held += 1;
        self.forwards.swap_remove(index).2
    }
}

impl Simulator<'_> {
    /// A free node takes a backward or loss first, else the earliest arrival, then the lower microbatch.
    /// With TC1 `held` a forward starts only where the node has memory for one more.
    ///
    /// At each instant everything that ends or arrives then happens first; after that the idle nodes start
    /// at most one task each, in order of node number; then again for what that made happen at the same
    /// instant.
    ///
    /// # Errors
    /// [`Deadlock`] where microbatches wait in a cycle for each other's memory.
    pub fn run_dispatch(&mut self) -> Result<Outcome, Deadlock> {
        self.run(None)
    }

    /// As [`Simulator::run_dispatch`], but a free node takes the task with the lowest number, whatever its kind: of
    /// microbatch number `b` forwards have priority `priorities[2 b]`, backwards and losses `priorities[2 b + 1]`.
    ///
    /// # Errors
    /// [`Deadlock`] where microbatches wait in a cycle for each other's memory.
    pub fn run_prioritised(&mut self, priorities: &[u32]) -> Result<Outcome, Deadlock> {
        self.run(Some(priorities))
    }

    fn run(&mut self, priorities: Option<&[u32]>) -> Result<Outcome, Deadlock> {
        let mut buffers = std::mem::take(&mut self.scratch.dispatch);
        let done = self.dispatch(&mut buffers, priorities);
        let result = if done == self.node.len() { Ok(self.outcome()) } else { Err(self.memory_cycle(&buffers)) };
        self.scratch.dispatch = buffers;
        result
    }

    /// What each node ran in the last [`Simulator::run_dispatch`], in order.
    #[must_use]
    pub fn dispatched_order(&self) -> Vec<Vec<TaskId>> {
        self.scratch.dispatch.nodes.iter().map(|node| node.ran.clone()).collect()
    }

    /// Runs until nothing can happen any more; gives the number of finished tasks.
    fn dispatch(&mut self, buffers: &mut Buffers, priorities: Option<&[u32]>) -> usize {
        let Buffers { events, nodes, touched } = buffers;
        let gated = self.instance.memory_is_held();
        events.clear();
        touched.clear();
        nodes.resize(self.instance.node_count(), NodeState::default());
        for node in nodes.iter_mut() {
            node.busy = false;
            node.touched = false;
            node.held = 0;
            node.urgent.clear();
            node.forwards.clear();
            node.ran.clear();
        }
        for span in &self.spans {
            if span.before == NO_TASK {
                events.push(Reverse((span.out, 2 * span.first)));
            }
        }
        let mut done = 0;
        while let Some(&Reverse((now, _))) = events.peek() {
            while let Some(&Reverse((time, event))) = events.peek() {
                if time > now {
                    break;
                }
                events.pop();
                let task = event / 2;
                let span = self.spans[self.microbatch[task as usize] as usize];
                let node = self.node[task as usize];
                let state = &mut nodes[node as usize];
                if !std::mem::replace(&mut state.touched, true) {
                    touched.push(node);
                }
                if event % 2 == 0 {
                    let is_forward = task - span.first < span.hops;
                    let queue = if is_forward { &mut state.forwards } else { &mut state.urgent };
                    let microbatch = self.microbatch[task as usize] as usize;
                    let key = priorities
                        .map_or(now, |priorities| Time::from(priorities[2 * microbatch + usize::from(!is_forward)]));
                    queue.push((key, span.id, task));
                    continue;
                }
                done += 1;
                state.busy = false;
                if task - span.first > span.hops {
                    state.held -= 1;
                }
                if task < span.first + 2 * span.hops {
                    events.push(Reverse((now + self.travel[task as usize + 1], 2 * (task + 1))));
                } else if span.after != NO_TASK {
                    let next = self.spans[span.after as usize];
                    events.push(Reverse((now + span.return_transfer + next.out, 2 * next.first)));
                }
            }
            touched.sort_unstable();
            for node in touched.drain(..) {
                let state = &mut nodes[node as usize];
                state.touched = false;
                if state.busy {
                    continue;
                }
                let urgent = first(&state.urgent);
                let full = gated && state.held >= self.instance.memory[node as usize];
                // Without priorities what is urgent goes first anyway.
                let forward =
                    if full || (priorities.is_none() && urgent.is_some()) { None } else { first(&state.forwards) };
                let task = match (urgent, forward) {
                    (None, None) => continue,
                    (Some((_, key)), Some((index, its))) if its < key => state.start_forward(index),
                    (None, Some((index, _))) => state.start_forward(index),
                    (Some((index, _)), _) => state.urgent.swap_remove(index).2,
                };
                state.busy = true;
                state.ran.push(task);
                self.start[task as usize] = now;
                events.push(Reverse((now + self.length[task as usize], 2 * task + 1)));
            }
        }
        done
    }

    /// Nothing happens any more: follows a waiting forward to a microbatch that holds the node it waits
    /// for, that one's waiting forward, and so on, until a task comes again.
    fn memory_cycle(&self, buffers: &Buffers) -> Deadlock {
        let waiting_of = |microbatch: u32| {
            buffers
                .nodes
                .iter()
                .flat_map(|n| &n.forwards)
                .map(|(_, _, task)| *task)
                .find(|task| self.microbatch[*task as usize] == microbatch)
        };
        let holds = |microbatch: u32, node: usize| {
            let state = &buffers.nodes[node];
            let (mut forward, mut backward) = (false, false);
            for task in state.ran.iter().filter(|t| self.microbatch[**t as usize] == microbatch) {
                let span = self.spans[microbatch as usize];
                forward |= task - span.first < span.hops;
                backward |= task - span.first > span.hops;
            }
            forward && !backward
        };
        let Some(mut task) = buffers.nodes.iter().flat_map(|n| &n.forwards).map(|(_, _, task)| *task).min() else {
            return Deadlock(Vec::new());
        };
        let mut path: Vec<TaskId> = Vec::new();
        loop {
            if let Some(first) = path.iter().position(|t| *t == task) {
                return Deadlock(path.split_off(first));
            }
            path.push(task);
            let node = self.node_of(task);
            let next = (0..self.spans.len() as u32).filter(|b| holds(*b, node)).find_map(waiting_of);
            match next {
                Some(next) => task = next,
                None => return Deadlock(path),
            }
        }
    }
}

/// Index and key of the first in a queue. Queues are short, so a scan beats a heap.
fn first(queue: &[Waiting]) -> Option<(usize, Waiting)> {
    queue.iter().copied().enumerate().min_by_key(|(_, entry)| *entry)
}
