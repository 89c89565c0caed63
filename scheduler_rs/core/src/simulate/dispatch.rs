//! Simulation under the dispatch rule of the strategies that do not plan an order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Deadlock, NO_TASK, Outcome, Simulator, TaskId};
use crate::contention::Channels;
use crate::problem::Instance;
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Time, then what happens: twice the task, plus one where the task ends rather than its input arrives.
    events: BinaryHeap<Reverse<(Time, u32)>>,
    processors: Vec<ProcessorState>,
    touched: Vec<u32>,
    /// Microbatches that each node holds.
    held: Vec<u32>,
    channels: Channels,
}

/// What goes first: arrival or priority, then the microbatch's id, then the task.
type Waiting = (Time, usize, TaskId);

#[derive(Clone, Debug, Default)]
struct ProcessorState {
    busy: bool,
    touched: bool,
    /// Backwards and losses, and forwards, whose input has arrived.
    urgent: Vec<Waiting>,
    forwards: Vec<Waiting>,
    /// What it ran, in order.
    ran: Vec<TaskId>,
}

impl Buffers {
    fn reset(&mut self, instance: &Instance) {
        let node_count = instance.node_count();
        self.events.clear();
        self.touched.clear();
        self.processors.resize(node_count, ProcessorState::default());
        self.processors.iter_mut().for_each(ProcessorState::reset);
        self.held.clear();
        self.held.resize(node_count, 0);
        self.channels.reset(instance);
    }

    /// The next event, if it happens by `now`.
    #[inline]
    fn next_event(&mut self, now: Time) -> Option<u32> {
        let Reverse((time, event)) = *self.events.peek()?;
        if time > now {
            return None;
        }
        self.events.pop();
        Some(event)
    }

    /// A processor at which something happens at this instant, so that it may start a task then.
    #[inline]
    fn touch(&mut self, processor: usize) -> &mut ProcessorState {
        let state = &mut self.processors[processor];
        if !std::mem::replace(&mut state.touched, true) {
            self.touched.push(processor as u32);
        }
        state
    }
}

/// Memory of the nodes, and what of it is in use.
struct Memory<'m> {
    held: &'m mut [u32],
    most: Option<&'m [u32]>,
    node_of: &'m [u32],
    is_shared: bool,
}

impl Memory<'_> {
    #[inline]
    fn has_room(&self, forward: TaskId) -> bool {
        let node = self.node_of[forward as usize] as usize;
        self.most.is_none_or(|most| self.held[node] < most[node])
    }

    /// Index and key of the first forward of a processor's queue whose node has room.
    #[inline]
    fn first_with_room(&self, forwards: &[Waiting]) -> Option<(usize, Waiting)> {
        if self.is_shared {
            let open = forwards.iter().copied().enumerate().filter(|(_, entry)| self.has_room(entry.2));
            return open.min_by_key(|(_, entry)| *entry);
        }
        // All of them are of one node.
        let has_room = forwards.first().is_some_and(|entry| self.has_room(entry.2));
        if has_room { first(forwards) } else { None }
    }
}

impl ProcessorState {
    fn reset(&mut self) {
        self.busy = false;
        self.touched = false;
        self.urgent.clear();
        self.forwards.clear();
        self.ran.clear();
    }

    /// Starts a task, if the processor is idle and one may start.
    #[inline]
    fn start_next(&mut self, memory: &mut Memory<'_>, is_prioritised: bool) -> Option<TaskId> {
        self.touched = false;
        if self.busy {
            return None;
        }
        let urgent = first(&self.urgent);
        // Without priorities what is urgent goes first anyway.
        let may_forward = is_prioritised || urgent.is_none();
        let forward = if may_forward { memory.first_with_room(&self.forwards) } else { None };
        let task = match (urgent, forward) {
            (None, None) => return None,
            (Some((_, key)), Some((index, its))) if its < key => self.start_forward(index, memory),
            (None, Some((index, _))) => self.start_forward(index, memory),
            (Some((index, _)), _) => self.urgent.swap_remove(index).2,
        };
        self.busy = true;
        self.ran.push(task);
        Some(task)
    }

    /// The forward at `index` of its queue, which is held from now on.
    fn start_forward(&mut self, index: usize, memory: &mut Memory<'_>) -> TaskId {
        let task = self.forwards.swap_remove(index).2;
        memory.held[memory.node_of[task as usize] as usize] += 1;
        task
    }
}

impl Simulator<'_> {
    /// A free processor takes a backward or loss first, else the earliest arrival, then the lower microbatch.
    /// With TC1 `held` a forward starts only where its node has memory for one more.
    ///
    /// At each instant everything that ends or arrives then happens first; after that the idle processors start
    /// at most one task each, in order of their number; then again for what that made happen at the same
    /// instant.
    ///
    /// # Errors
    /// [`Deadlock`] where microbatches wait in a cycle for each other's memory.
    pub fn run_dispatch(&mut self) -> Result<Outcome, Deadlock> {
        self.run(None)
    }

    /// As [`Simulator::run_dispatch`], but a free processor takes the task with the lowest number, whatever its kind: of
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

    /// What each processor ran in the last [`Simulator::run_dispatch`], in order.
    #[must_use]
    pub fn dispatched_order(&self) -> Vec<Vec<TaskId>> {
        self.scratch.dispatch.processors.iter().map(|processor| processor.ran.clone()).collect()
    }

    /// Runs until nothing can happen any more; gives the number of finished tasks.
    fn dispatch(&mut self, buffers: &mut Buffers, priorities: Option<&[u32]>) -> usize {
        buffers.reset(self.instance);
        let starts = self.spans.iter().filter(|span| span.before == NO_TASK);
        buffers.events.extend(starts.map(|span| Reverse((span.out, 2 * span.first))));
        let mut done = 0;
        while let Some(&Reverse((now, _))) = buffers.events.peek() {
            while let Some(event) = buffers.next_event(now) {
                if event % 2 == 0 {
                    self.arrive(event / 2, now, buffers, priorities);
                } else {
                    self.finish(event / 2, now, buffers);
                    done += 1;
                }
            }
            let Buffers { events, processors, touched, held, .. } = buffers;
            let mut memory = Memory {
                held,
                most: self.instance.memory_is_held().then_some(&self.instance.memory),
                node_of: &self.node,
                is_shared: self.instance.shares_processors(),
            };
            touched.sort_unstable();
            for processor in touched.drain(..).map(|processor| processor as usize) {
                if let Some(task) = processors[processor].start_next(&mut memory, priorities.is_some()) {
                    self.start[task as usize] = now;
                    events.push(Reverse((now + self.length[task as usize], 2 * task + 1)));
                }
            }
        }
        done
    }

    /// The input of `task` arrives: it waits at its processor.
    #[inline]
    fn arrive(&self, task: TaskId, now: Time, buffers: &mut Buffers, priorities: Option<&[u32]>) {
        let microbatch = self.microbatch_of(task);
        let span = self.spans[microbatch];
        let is_forward = task - span.first < span.hops;
        let state = buffers.touch(self.processor_of(task));
        let queue = if is_forward { &mut state.forwards } else { &mut state.urgent };
        let key =
            priorities.map_or(now, |priorities| Time::from(priorities[2 * microbatch + usize::from(!is_forward)]));
        queue.push((key, span.id, task));
    }

    /// `task` ends: its output leaves for the next task of the microbatch, or completes it for the next wave.
    #[inline]
    fn finish(&self, task: TaskId, now: Time, buffers: &mut Buffers) {
        let span = self.spans[self.microbatch_of(task)];
        buffers.touch(self.processor_of(task)).busy = false;
        if task - span.first > span.hops {
            buffers.held[self.node_of(task)] -= 1;
        }
        if task < span.first + 2 * span.hops {
            let (next, travel) = (task + 1, self.travel[task as usize + 1]);
            let (from, to) = (self.node_of(task), self.node_of(next));
            let arrival = buffers.channels.deliver(self.instance, from, to, travel, now);
            buffers.events.push(Reverse((arrival, 2 * next)));
        } else if span.after != NO_TASK {
            let next = self.spans[span.after as usize];
            buffers.events.push(Reverse((now + span.return_transfer + next.out, 2 * next.first)));
        }
    }

    /// Nothing happens any more: follows a waiting forward to a microbatch that holds the node it waits
    /// for, that one's waiting forward, and so on, until a task comes again.
    fn memory_cycle(&self, buffers: &Buffers) -> Deadlock {
        let waiting_of = |microbatch: u32| {
            buffers
                .processors
                .iter()
                .flat_map(|p| &p.forwards)
                .map(|(_, _, task)| *task)
                .find(|task| self.microbatch[*task as usize] == microbatch)
        };
        let holds = |microbatch: u32, node: usize| {
            let ran = &buffers.processors[self.instance.processor(node)].ran;
            let (mut forward, mut backward) = (false, false);
            for task in ran.iter().filter(|t| self.microbatch[**t as usize] == microbatch && self.node_of(**t) == node)
            {
                let span = self.spans[microbatch as usize];
                forward |= task - span.first < span.hops;
                backward |= task - span.first > span.hops;
            }
            forward && !backward
        };
        let Some(mut task) = buffers.processors.iter().flat_map(|p| &p.forwards).map(|(_, _, task)| *task).min() else {
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
