//! A given order that changes a little at a time: the longest paths to and from every task, kept up to date.
//!
//! The tasks are the vertices of a disjunctive graph (Roy and Sussmann): arcs lead along each microbatch, from the
//! completion of a wave to the start of the next, and along the order of each processor. The head of a task is its start;
//! its tail, the longest path from its end to the end of the iteration. Both are kept along a topological sequence: a
//! change of one processor's order only rearranges the section of the sequence that its tasks span, and only what it
//! changes is computed anew.

mod bits;
mod list;

use bits::Bits;
use smallvec::SmallVec;

use super::{Deadlock, MicrobatchRoute, NO_TASK, Outcome, Simulator, TaskId};
use crate::contention::{Channels, Message};
use crate::problem::Instance;
use crate::time::Time;

/// A task of a whole simulation takes about as long as so many looks at a task here.
const LOOKS_PER_STEP: u64 = 4;

/// A task as the graph sees it.
#[derive(Clone, Copy, Debug)]
struct Vertex {
    head: Time,
    tail: Time,
    length: Time,
    /// From the end of `before` to the earliest start, or from time 0 where there is none.
    lag: Time,
    /// From its end to the end of the iteration, if nothing comes after it.
    rest: Time,
    /// The task before and after it in its microbatch, or in the wave before and after.
    before: TaskId,
    after: TaskId,
    /// The task before and after it on its processor.
    left: TaskId,
    right: TaskId,
    processor: u32,
    node: u32,
    /// Index in `order`.
    index: u32,
    /// Index in `sequence`.
    position: u32,
    /// Microbatches that its node holds more once it has run: 1 for a forward, -1 for a backward, 0 for a loss.
    holds: i32,
}

/// What [`OrderGraph::replace`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The new order stands.
    Done,
    /// Tasks would wait for each other in a cycle; nothing has changed.
    Cycle,
    /// A node would hold more than it has memory for; nothing has changed.
    Overfull,
}

/// The disjunctive graph of an order, with heads and tails.
#[derive(Clone, Debug)]
pub struct OrderGraph {
    vertices: Vec<Vertex>,
    /// Tasks of all processors in their order, processor after processor.
    order: Vec<TaskId>,
    /// Where each processor's tasks begin in `order`, and where the last one's end.
    begin: Vec<u32>,
    /// Microbatches that the task's node holds once the task at each index of `order` has run.
    held: Vec<u32>,
    /// Most of them at a time, per node.
    memory: Vec<u32>,
    /// Every task after those before it.
    sequence: Vec<TaskId>,
    /// First tasks of microbatches that wait for none, and last tasks of all, with the transfer back to the source.
    firsts: Vec<TaskId>,
    lasts: Vec<(TaskId, Time)>,
    /// The iteration is no shorter, and so much is added to it.
    floor: Time,
    epilogue: Time,
    end: Time,
    /// Tasks looked at so far.
    work: u64,
    dirty: Bits,
    /// Where messages take turns.
    turns: Option<Turns>,
    /// For `arrange`: tasks being looked at, and done with, in this call.
    stamps: Vec<u64>,
    stamp: u64,
    stack: Vec<TaskId>,
    window: Vec<TaskId>,
    old: Vec<TaskId>,
    times: Vec<Time>,
}

impl OrderGraph {
    /// The graph of `order`, which lists every task of `microbatches` once, on its own processor.
    ///
    /// # Errors
    /// [`Deadlock`] as [`Simulator::run_order`].
    pub fn new(instance: &Instance, microbatches: &[MicrobatchRoute], order: &[Vec<TaskId>]) -> Result<Self, Deadlock> {
        let mut simulator = Simulator::new(instance);
        simulator.load(microbatches);
        simulator.run_order(order)?;
        let count = simulator.task_count();
        let mut begin = vec![0];
        begin.extend(order.iter().scan(0, |sum, tasks| {
            *sum += tasks.len() as u32;
            Some(*sum)
        }));
        let waits = |span: &super::Span| span.before != NO_TASK;
        let last = |span: &super::Span| (span.first + 2 * span.hops, span.return_transfer);
        let mut graph = Self {
            vertices: (0..count as TaskId).map(|task| vertex(instance, &simulator, task)).collect(),
            order: Vec::new(),
            begin,
            held: vec![0; count],
            memory: instance.memory.iter().map(|m| if instance.memory_is_held() { *m } else { u32::MAX }).collect(),
            sequence: (0..count as TaskId).collect(),
            firsts: simulator.spans.iter().filter(|span| !waits(span)).map(|span| span.first).collect(),
            lasts: simulator.spans.iter().map(last).collect(),
            floor: instance.allreduce.iter().copied().max().unwrap_or(0),
            epilogue: instance.epilogue,
            end: 0,
            work: 0,
            dirty: Bits::new(count),
            turns: Turns::of(instance, &simulator),
            stamps: vec![0; count],
            stamp: 0,
            stack: Vec::new(),
            window: Vec::new(),
            old: Vec::new(),
            times: Vec::new(),
        };
        let order: Vec<TaskId> = order.iter().flatten().copied().collect();
        if graph.reset(&order) { Ok(graph) } else { Err(Deadlock(Vec::new())) }
    }

    /// Takes another order of all processors, as [`OrderGraph::order`] gives it; false where its tasks would wait for each
    /// other, which leaves the graph useless until the next reset.
    pub fn reset(&mut self, order: &[TaskId]) -> bool {
        self.order.clear();
        self.order.extend_from_slice(order);
        for processor in 0..self.processor_count() {
            self.link(self.begin[processor] as usize, self.begin[processor + 1] as usize);
        }
        // Sorted by time, the sequence is nearly right.
        self.sequence.sort_unstable_by_key(|task| (self.vertices[*task as usize].head, *task));
        for (position, task) in (0..).zip(&self.sequence) {
            self.vertices[*task as usize].position = position;
        }
        let count = self.sequence.len();
        if count == 0 || !self.arrange(0, count - 1) {
            return count == 0;
        }
        if self.turns.is_some() {
            self.follow_messages();
        } else {
            for position in 0..count {
                self.dirty.insert(position);
            }
            self.follow_heads(0);
            for position in 0..count {
                self.dirty.insert(position);
            }
            self.follow_tails(count - 1);
        }
        self.measure();
        true
    }

    /// Tasks of all processors in their order, processor after processor.
    #[must_use]
    pub fn order(&self) -> &[TaskId] {
        &self.order
    }

    /// Indices of a processor's tasks in [`OrderGraph::order`].
    #[must_use]
    pub fn indices_of(&self, processor: usize) -> std::ops::Range<usize> {
        self.begin[processor] as usize..self.begin[processor + 1] as usize
    }

    /// Processor of a task.
    #[must_use]
    pub fn processor_of(&self, task: TaskId) -> usize {
        self.vertices[task as usize].processor as usize
    }

    /// Index of a task in [`OrderGraph::order`].
    #[must_use]
    pub fn index_of(&self, task: TaskId) -> usize {
        self.vertices[task as usize].index as usize
    }

    /// Start of a task.
    #[must_use]
    pub fn head_of(&self, task: TaskId) -> Time {
        self.vertices[task as usize].head
    }

    /// Longest path from the end of a task to the end of the iteration, norm and optimizer left out.
    #[must_use]
    pub fn tail_of(&self, task: TaskId) -> Time {
        self.vertices[task as usize].tail
    }

    /// All tasks by their starts, each after those that it waits for; equal starts in the order of `listed`, which has
    /// every task once.
    #[must_use]
    pub fn by_start(&self, listed: &[TaskId]) -> Vec<TaskId> {
        let mut tasks: Vec<(usize, TaskId)> = listed.iter().copied().enumerate().collect();
        tasks.sort_by_key(|(index, task)| {
            let Vertex { head, length, position, .. } = self.vertices[*task as usize];
            // What starts when another one does can only wait for it if that takes no time.
            (head, length > 0, if length == 0 { position as usize } else { *index })
        });
        tasks.into_iter().map(|(_, task)| task).collect()
    }

    /// 1 for a forward, -1 for a backward, 0 for a loss.
    #[must_use]
    pub fn holds(&self, task: TaskId) -> i32 {
        self.vertices[task as usize].holds
    }

    /// Microbatch of a task, by its index in what the graph was made of.
    #[must_use]
    pub fn microbatch_of(&self, task: TaskId) -> usize {
        self.lasts.partition_point(|(last, _)| *last < task)
    }

    /// Whether a forward waits for memory: its node is full before the task before it has run.
    #[must_use]
    pub fn is_gated(&self, task: TaskId) -> bool {
        let vertex = &self.vertices[task as usize];
        let Some(left) = self.vertices.get(vertex.left as usize) else { return false };
        let (node, is_freed) = (vertex.node as usize, left.holds < 0 && left.node == vertex.node);
        vertex.holds > 0 && is_freed && self.held[vertex.index as usize] >= self.memory[node]
    }

    /// One more than the greatest number of a processor.
    #[must_use]
    pub fn processor_count(&self) -> usize {
        self.begin.len() - 1
    }

    /// Number of microbatches.
    #[must_use]
    pub fn microbatch_count(&self) -> usize {
        self.lasts.len()
    }

    /// The iteration, norm and optimizer left out.
    #[must_use]
    pub fn end(&self) -> Time {
        self.end
    }

    /// The iteration.
    #[must_use]
    pub fn iteration(&self) -> Time {
        self.end + self.epilogue
    }

    /// Sum of the completion times of the microbatches.
    #[must_use]
    pub fn finish_sum(&self) -> Time {
        self.completions().sum()
    }

    /// When everything ends, as [`Simulator::run_order`] gives it.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome {
            pipeline: self.completions().max().unwrap_or(0),
            iteration: self.iteration(),
            finish_sum: self.finish_sum(),
        }
    }

    /// Search steps so far: tasks looked at, as many of them as take as long as one task of a simulation.
    #[must_use]
    pub fn work(&self) -> u64 {
        self.work / LOOKS_PER_STEP
    }

    fn completions(&self) -> impl Iterator<Item = Time> {
        self.lasts.iter().map(|(task, return_transfer)| {
            let vertex = &self.vertices[*task as usize];
            vertex.head + vertex.length + return_transfer
        })
    }

    /// One of the longest paths through the graph, into `path`; where several go on, `choose` picks by their number.
    pub fn critical_path(&mut self, path: &mut Vec<TaskId>, mut choose: impl FnMut(usize) -> usize) {
        path.clear();
        let longest = |task: &&TaskId| {
            let vertex = &self.vertices[**task as usize];
            vertex.lag + vertex.length + vertex.tail == self.end
        };
        let count = self.firsts.iter().filter(longest).count();
        if count == 0 {
            return; // nothing but an all-reduce
        }
        let mut task = self.firsts.iter().filter(longest).nth(choose(count)).copied();
        while let Some(current) = task {
            path.push(current);
            let vertex = &self.vertices[current as usize];
            let through = |next: TaskId, lag: Time| {
                self.vertices.get(next as usize).is_some_and(|n| n.length + n.tail + lag == vertex.tail)
            };
            let lag = self.vertices.get(vertex.after as usize).map_or(0, |after| after.lag);
            task = match (through(vertex.after, lag), through(vertex.right, 0)) {
                (true, true) => Some(if choose(2) == 0 { vertex.after } else { vertex.right }),
                (true, false) => Some(vertex.after),
                (false, true) => Some(vertex.right),
                (false, false) => None,
            };
        }
        self.work += (path.len() + self.firsts.len()) as u64 / 2;
    }

    /// What comes after a task in its microbatch or the next wave.
    #[must_use]
    pub fn after(&self, task: TaskId) -> Option<TaskId> {
        Some(self.vertices[task as usize].after).filter(|after| *after != NO_TASK)
    }

    /// Whether a task of the same processor may be moved behind `last`, as far as one look tells: no path may lead from what
    /// comes after the task to `last`.
    #[must_use]
    pub fn may_follow(&self, task: TaskId, last: TaskId) -> bool {
        let (after, last_) = (self.vertices[task as usize].after, &self.vertices[last as usize]);
        let leads_there = |after: &Vertex| after.position <= last_.position && after.head + after.length <= last_.head;
        after != last && !self.vertices.get(after as usize).is_some_and(leads_there)
    }

    /// Whether a task of the same processor may be moved before `first`, as far as one look tells.
    #[must_use]
    pub fn may_precede(&self, task: TaskId, first: TaskId) -> bool {
        let (before, first_) = (self.vertices[task as usize].before, &self.vertices[first as usize]);
        let comes_thence =
            |before: &Vertex| before.position >= first_.position && before.length + before.tail <= first_.tail;
        before != first && !self.vertices.get(before as usize).is_some_and(comes_thence)
    }

    /// Whether no node holds more than it has memory for, if `tasks`, of one processor, run in that order from index
    /// `from` on.
    #[must_use]
    pub fn fits(&self, from: usize, tasks: &[TaskId]) -> bool {
        let mut counts: SmallVec<[(u32, u32); 4]> = SmallVec::new(); // nodes and what they hold
        tasks.iter().all(|task| {
            let Vertex { node, holds, .. } = self.vertices[*task as usize];
            let known = counts.iter().position(|(other, _)| *other == node).unwrap_or_else(|| {
                counts.push((node, self.held_before(*task, from)));
                counts.len() - 1
            });
            let held = &mut counts[known].1;
            *held = held.wrapping_add_signed(holds);
            *held <= self.memory[node as usize]
        })
    }

    /// What the node of `task` holds before anything at `index` of its processor's order, or later, has run.
    fn held_before(&self, task: TaskId, index: usize) -> u32 {
        let Vertex { node, processor, .. } = self.vertices[task as usize];
        let begin = self.begin[processor as usize] as usize;
        let earlier = self.order[begin..index].iter().rposition(|other| self.vertices[*other as usize].node == node);
        earlier.map_or(0, |position| self.held[begin + position])
    }

    /// What the iteration, norm and optimizer left out, would about come to if `tasks` ran in that order from index
    /// `from` on: the longest path through one of them, by the heads and tails of the others as they are (Taillard).
    pub fn estimate(&mut self, from: usize, tasks: &[TaskId]) -> Time {
        self.work += tasks.len() as u64;
        let (Some(first), Some(last)) = (self.order.get(from), self.order.get(from + tasks.len() - 1)) else {
            return 0;
        };
        let (left, right) = (self.vertices[*first as usize].left, self.vertices[*last as usize].right);
        self.times.clear();
        let mut head = self.end_of(left);
        for task in tasks {
            let vertex = &self.vertices[*task as usize];
            head = head.max(self.end_of(vertex.before) + vertex.lag);
            self.times.push(head);
            head += vertex.length;
        }
        let mut tail = self.path_from(right);
        let mut longest = 0;
        for (task, head) in tasks.iter().zip(&self.times).rev() {
            let vertex = &self.vertices[*task as usize];
            let lag = self.vertices.get(vertex.after as usize).map_or(0, |after| after.lag);
            tail = tail.max(self.path_from(vertex.after) + lag).max(vertex.rest) + vertex.length;
            longest = longest.max(head + tail);
        }
        longest
    }

    /// End of a task, 0 for none.
    fn end_of(&self, task: TaskId) -> Time {
        self.vertices.get(task as usize).map_or(0, |vertex| vertex.head + vertex.length)
    }

    /// Longest path from the start of a task, 0 for none.
    fn path_from(&self, task: TaskId) -> Time {
        self.vertices.get(task as usize).map_or(0, |vertex| vertex.length + vertex.tail)
    }

    /// Has `tasks`, which are those of one processor there, run in that order from index `from` on.
    pub fn replace(&mut self, from: usize, tasks: &[TaskId]) -> Replaced {
        if !self.fits(from, tasks) {
            return Replaced::Overfull;
        }
        let to = from + tasks.len();
        let (low, high) = (self.position_of(self.order[from]), self.position_of(self.order[to - 1]));
        let mut old = std::mem::take(&mut self.old);
        old.clear();
        old.extend_from_slice(&self.order[from..to]);
        self.order[from..to].copy_from_slice(tasks);
        self.link(from, to);
        let is_done = self.arrange(low, high);
        if is_done && self.turns.is_some() {
            self.follow_messages();
            self.measure();
        } else if is_done {
            let right = self.vertices[self.order[to - 1] as usize].right;
            let left = self.vertices[self.order[from] as usize].left;
            for task in tasks.iter().chain([&right]).filter(|task| **task != NO_TASK) {
                self.dirty.insert(self.vertices[*task as usize].position as usize);
            }
            self.follow_heads(low);
            for task in tasks.iter().chain([&left]).filter(|task| **task != NO_TASK) {
                self.dirty.insert(self.vertices[*task as usize].position as usize);
            }
            self.follow_tails(high);
            self.measure();
        } else {
            self.order[from..to].copy_from_slice(&old);
            self.link(from, to);
        }
        self.old = old;
        if is_done { Replaced::Done } else { Replaced::Cycle }
    }

    fn position_of(&self, task: TaskId) -> usize {
        self.vertices[task as usize].position as usize
    }

    /// Links the tasks of one processor at indices `from..to` with their neighbours, and counts what their nodes hold.
    fn link(&mut self, from: usize, to: usize) {
        let Some(first) = self.order.get(from).filter(|_| from < to) else { return };
        let processor = self.processor_of(*first);
        let (begin, end) = (self.begin[processor] as usize, self.begin[processor + 1] as usize);
        let mut left = if from == begin { NO_TASK } else { self.order[from - 1] };
        if let Some(vertex) = self.vertices.get_mut(left as usize) {
            vertex.right = self.order[from];
        }
        for index in from..to {
            let task = self.order[index];
            let held = self.held_before(task, index);
            let vertex = &mut self.vertices[task as usize];
            vertex.index = index as u32;
            vertex.left = left;
            vertex.right = if index + 1 < end { self.order[index + 1] } else { NO_TASK };
            self.held[index] = held.wrapping_add_signed(vertex.holds);
            left = task;
        }
        if to < end {
            self.vertices[self.order[to] as usize].left = left;
        }
    }

    /// Brings the tasks at positions `low..=high` into an order in which each comes after those before it, else as they
    /// were; false and no change where there is none.
    fn arrange(&mut self, low: usize, high: usize) -> bool {
        let (open, done) = (self.stamp + 1, self.stamp + 2);
        self.stamp = done;
        self.window.clear();
        for position in low..=high {
            self.stack.push(self.sequence[position]);
            while let Some(task) = self.stack.last() {
                let vertex = &self.vertices[*task as usize];
                let stamp = &mut self.stamps[*task as usize];
                if *stamp == done {
                    self.stack.pop();
                    continue;
                }
                *stamp = open;
                let waits = [vertex.before, vertex.left].into_iter().find(|other| {
                    self.vertices.get(*other as usize).is_some_and(|v| v.position as usize >= low)
                        && self.stamps[*other as usize] != done
                });
                match waits {
                    None => {
                        self.stamps[*task as usize] = done;
                        self.window.push(*task);
                        self.stack.pop();
                    }
                    Some(other) if self.stamps[other as usize] == open => {
                        self.stack.clear();
                        return false;
                    }
                    Some(other) => self.stack.push(other),
                }
            }
        }
        self.work += self.window.len() as u64 / 2;
        for (position, task) in (low..).zip(&self.window) {
            self.sequence[position] = *task;
            self.vertices[*task as usize].position = position as u32;
        }
        true
    }

    /// Computes the heads of what is dirty, all of it at position `from` or after, and of what that changes.
    fn follow_heads(&mut self, from: usize) {
        let mut at = from / 64;
        while let Some(position) = self.dirty.take_first(&mut at) {
            self.work += 1;
            let task = self.sequence[position] as usize;
            let vertex = &self.vertices[task];
            let head = (self.end_of(vertex.before) + vertex.lag).max(self.end_of(vertex.left));
            if head == vertex.head {
                continue;
            }
            let next = [vertex.after, vertex.right];
            self.vertices[task].head = head;
            for other in next.into_iter().filter(|other| *other != NO_TASK) {
                self.dirty.insert(self.vertices[other as usize].position as usize);
            }
        }
    }

    /// Computes the tails of what is dirty, all of it at position `from` or before, and of what that changes.
    fn follow_tails(&mut self, from: usize) {
        let mut at = from / 64;
        while let Some(position) = self.dirty.take_last(&mut at) {
            self.work += 1;
            let task = self.sequence[position] as usize;
            let vertex = &self.vertices[task];
            let tail = self.tail_from(vertex);
            if tail == vertex.tail {
                continue;
            }
            let next = [vertex.before, vertex.left];
            self.vertices[task].tail = tail;
            for other in next.into_iter().filter(|other| *other != NO_TASK) {
                self.dirty.insert(self.vertices[other as usize].position as usize);
            }
        }
    }

    /// Computes all heads and tails where messages take turns: any change of an order may have messages wait that it does
    /// not touch. What a message waits is part of the lag of the task whose input it is.
    fn follow_messages(&mut self) {
        let Some(turns) = &mut self.turns else { return };
        turns.channels.clear();
        let end_of = |vertices: &[Vertex], task: TaskId| vertices.get(task as usize).map_or(0, |v| v.head + v.length);
        for task in &self.sequence {
            let vertex = &self.vertices[*task as usize];
            let (before, left) = (end_of(&self.vertices, vertex.before), end_of(&self.vertices, vertex.left));
            let head = (before + vertex.lag).max(left);
            let (end, after) = (head + vertex.length, vertex.after as usize);
            self.vertices[*task as usize].head = head;
            // Tasks of one processor come in its order here, and so do its messages.
            if let Some(message @ Some(_)) = turns.messages.get(after).copied() {
                self.vertices[after].lag = turns.channels.leave(message, end) - end + turns.travel[after];
            }
        }
        for position in (0..self.sequence.len()).rev() {
            let task = self.sequence[position] as usize;
            let tail = self.tail_from(&self.vertices[task]);
            self.vertices[task].tail = tail;
        }
        self.work += 2 * self.sequence.len() as u64;
    }

    /// The tail of a task by those of the tasks after it.
    fn tail_from(&self, vertex: &Vertex) -> Time {
        let lag = self.vertices.get(vertex.after as usize).map_or(0, |after| after.lag);
        (self.path_from(vertex.after) + lag).max(self.path_from(vertex.right)).max(vertex.rest)
    }

    /// Whether the input of a task waits for other messages of its sender.
    #[must_use]
    pub fn waits_for_link(&self, task: TaskId) -> bool {
        self.turns.as_ref().is_some_and(|turns| self.vertices[task as usize].lag > turns.travel[task as usize])
    }

    /// The nearest tasks before `task` on its processor, by their indices, whose messages are sent over the same link.
    pub fn sent_before(&self, task: TaskId) -> impl Iterator<Item = usize> {
        let message = |task: TaskId| {
            let after = self.vertices[task as usize].after as usize;
            self.turns.as_ref().and_then(|turns| turns.messages.get(after).copied().flatten())
        };
        let (own, index) = (message(task), self.index_of(task));
        let begin = self.indices_of(self.processor_of(task)).start;
        let shares =
            move |index: &usize| own.zip(message(self.order[*index])).is_some_and(|(own, other)| own.disturbs(other));
        (begin..index).rev().filter(shares)
    }

    /// Every path begins at the start of a microbatch that waits for none.
    fn measure(&mut self) {
        let through = |task: &TaskId| {
            let vertex = &self.vertices[*task as usize];
            vertex.lag + vertex.length + vertex.tail
        };
        self.end = self.firsts.iter().map(through).max().unwrap_or(0).max(self.floor);
        self.work += self.firsts.len() as u64 / 4;
    }
}

/// Messages that take turns, by the task whose input they are.
#[derive(Clone, Debug)]
struct Turns {
    messages: Vec<Option<Message>>,
    /// The lag of a task whose input does not wait.
    travel: Vec<Time>,
    channels: Channels,
}

impl Turns {
    fn of(instance: &Instance, simulator: &Simulator<'_>) -> Option<Self> {
        if instance.contention().is_none() {
            return None;
        }
        let tasks = 0..simulator.task_count() as TaskId;
        let message = |task: TaskId| {
            let is_first = task == simulator.spans[simulator.microbatch_of(task)].first;
            if is_first { None } else { Message::of(instance, simulator.node_of(task - 1), simulator.node_of(task)) }
        };
        let mut channels = Channels::default();
        channels.reset(instance);
        let travel = tasks.clone().map(|task| vertex(instance, simulator, task).lag).collect();
        Some(Self { messages: tasks.map(message).collect(), travel, channels })
    }
}

/// A task with its neighbours in its microbatch, not yet in an order.
fn vertex(instance: &Instance, simulator: &Simulator<'_>, task: TaskId) -> Vertex {
    let span = simulator.spans[simulator.microbatch_of(task)];
    let (index, last) = (task - span.first, 2 * span.hops);
    let (mut before, mut lag) = (NO_TASK, span.out);
    if index > 0 {
        (before, lag) = (task - 1, simulator.travel[task as usize]);
    } else if span.before != NO_TASK {
        let earlier = simulator.spans[span.before as usize];
        (before, lag) = (earlier.first + 2 * earlier.hops, earlier.return_transfer + span.out);
    }
    let after = match simulator.spans.get(span.after as usize) {
        _ if index < last => task + 1,
        Some(next) => next.first,
        None => NO_TASK,
    };
    let node = simulator.node_of(task);
    // A backward ends its stage's part of the iteration, the last one its microbatch's.
    let reduce = if index > span.hops { instance.allreduce[instance.stage_of[node]] } else { 0 };
    let return_transfer = if index == last { span.return_transfer } else { 0 };
    Vertex {
        head: simulator.start_of(task),
        tail: 0,
        length: simulator.length[task as usize],
        lag,
        rest: reduce.max(return_transfer),
        before,
        after,
        left: NO_TASK,
        right: NO_TASK,
        processor: simulator.processor_of(task) as u32,
        node: node as u32,
        index: 0,
        position: 0,
        holds: (span.hops as i32 - index as i32).signum(),
    }
}
