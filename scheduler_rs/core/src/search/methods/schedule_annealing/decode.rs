//! From a sequence of all tasks to their times.

use crate::contention::{Channels, Message};
use crate::problem::Instance;
use crate::route::RouteTask;
use crate::search::methods::annealing::energy;
use crate::search::methods::routes::Path;
use crate::time::{NEVER, Time};

/// No operation.
pub(super) const NONE: u32 = u32::MAX;

/// A task as the decoder sees it. Those of microbatch `b` have the ids `b * width ..`: forwards, loss, backwards.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Operation {
    pub length: Time,
    /// Transfer of its input.
    pub lag: Time,
    /// At least so long from its start to the end of the iteration, norm and optimizer left out.
    pub rest: Time,
    pub node: u32,
    pub microbatch: u32,
    /// Index in its microbatch.
    pub index: u32,
    /// Microbatches that its node holds more once it has started: 1 for a forward, -1 for a backward, 0 for a loss.
    pub holds: i32,
}

/// The times of all operations, and what they come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Operations in the order in which they were placed: each after those that it waits for.
    pub placed: Vec<u32>,
    /// By operation: its start, and the one before it on its processor.
    pub start: Vec<Time>,
    pub left: Vec<u32>,
    pub iteration: Time,
    /// Sum of the completion times of the microbatches.
    pub finish_sum: Time,
}

/// A serial schedule generation scheme over all operations.
#[derive(Debug)]
pub(super) struct Decoder {
    pub operations: Vec<Operation>,
    /// By operation: the message with its input, where that takes turns with others; empty where none do.
    messages: Vec<Option<Message>>,
    channels: Channels,
    /// Ids of a microbatch's operations lie so far apart.
    pub width: usize,
    /// Length of each microbatch's path.
    pub hops: Vec<u32>,
    /// Transfer to the source after its last operation.
    pub return_transfer: Vec<Time>,
    /// Whether a microbatch is a later wave: it starts when the one before is complete.
    pub follows: Vec<bool>,
    allreduce: Vec<Time>,
    memory: Vec<u32>,
    processor_of: Vec<u32>,
    /// The iteration is no shorter, and so much is added to it.
    floor: Time,
    epilogue: Time,
    /// By processor: when it is free, and its last operation.
    free: Vec<Time>,
    last: Vec<u32>,
    /// By node.
    held: Vec<u32>,
    /// By microbatch: when its next operation's input leaves, how many operations are placed, and how many were due.
    ready: Vec<Time>,
    placed: Vec<u32>,
    due: Vec<u32>,
    /// Nodes without memory, and the microbatches that wait for it.
    waiting: Vec<(u32, u32)>,
    resumed: Vec<u32>,
}

impl Decoder {
    /// A decoder for paths of at most `longest` nodes; [`Decoder::set_path`] gives each microbatch its own.
    pub fn new(instance: &Instance, tasks: &[RouteTask], longest: usize) -> Self {
        let follows: Vec<bool> = tasks.iter().flat_map(|task| (0..task.waves).map(|wave| wave > 0)).collect();
        let (count, nodes, width) = (follows.len(), instance.node_count(), 2 * longest + 1);
        let takes_turns = !instance.contention().is_none();
        let mut channels = Channels::default();
        channels.reset(instance);
        let mut decoder = Self {
            operations: vec![Operation::default(); count * width],
            messages: vec![None; if takes_turns { count * width } else { 0 }],
            channels,
            width,
            hops: vec![0; count],
            return_transfer: vec![0; count],
            follows,
            allreduce: vec![0; nodes],
            memory: vec![u32::MAX; nodes],
            processor_of: vec![0; nodes],
            floor: 0,
            epilogue: instance.epilogue,
            free: vec![0; nodes],
            last: vec![NONE; nodes],
            held: vec![0; nodes],
            ready: vec![0; count],
            placed: vec![0; count],
            due: vec![0; count],
            waiting: Vec::new(),
            resumed: Vec::new(),
        };
        decoder.set_allocation(instance);
        decoder
    }

    /// Takes over what the allocation says of nodes; [`Decoder::set_path`] is to follow for every microbatch.
    pub fn set_allocation(&mut self, instance: &Instance) {
        for (node, stage) in instance.stage_of.iter().enumerate() {
            self.allreduce[node] = instance.allreduce.get(*stage).copied().unwrap_or(0);
            self.processor_of[node] = instance.processor(node) as u32;
            if instance.memory_is_held() {
                self.memory[node] = instance.memory[node];
            }
        }
        self.floor = instance.allreduce.iter().copied().max().unwrap_or(0);
    }

    /// Times for [`Decoder::decode`] to write to.
    pub fn blank(&self) -> Times {
        let count = self.operations.len();
        Times { start: vec![0; count], left: vec![NONE; count], ..Times::default() }
    }

    /// Ids of a microbatch's operations.
    pub fn operations_of(&self, microbatch: usize) -> std::ops::Range<u32> {
        let first = (microbatch * self.width) as u32;
        first..first + 2 * self.hops[microbatch] + 1
    }

    /// What a microbatch's operations are on `path`.
    pub fn set_path(&mut self, instance: &Instance, task: &RouteTask, microbatch: usize, path: &Path) {
        let hops = path.len();
        let operations = &mut self.operations[microbatch * self.width..];
        let messages = self.messages.get_mut(microbatch * self.width..).unwrap_or_default();
        self.hops[microbatch] = hops as u32;
        let back = instance.transfer(path[0] as usize, task.source);
        self.return_transfer[microbatch] = back;
        let mut previous = task.source;
        for (index, operation) in operations[..=2 * hops].iter_mut().enumerate() {
            let (node, length, holds) = match index {
                i if i < hops => (path[i] as usize, instance.forward(task.class, path[i] as usize), 1),
                i if i == hops => (task.source, instance.loss(task.class, task.source), 0),
                i => {
                    let node = path[2 * hops - i] as usize;
                    (node, instance.backward(task.class, node), -1)
                }
            };
            let lag = instance.transfer(previous, node);
            let (node_, microbatch, index) = (node as u32, microbatch as u32, index as u32);
            *operation = Operation { length, lag, rest: 0, node: node_, microbatch, index, holds };
            if let Some(message) = messages.get_mut(index as usize) {
                *message = Message::of(instance, previous, node).filter(|_| index > 0);
            }
            previous = node;
        }
        let (mut rest, mut lag) = (back, 0);
        for operation in operations[..=2 * hops].iter_mut().rev() {
            let reduce = if operation.holds < 0 { self.allreduce[operation.node as usize] } else { 0 };
            rest = (rest + lag).max(reduce) + operation.length;
            operation.rest = rest;
            lag = operation.lag;
        }
    }

    /// The operation whose end an operation waits for in its microbatch or the wave before, and the transfer between.
    pub fn before(&self, id: u32) -> Option<(u32, Time)> {
        let operation = &self.operations[id as usize];
        let microbatch = operation.microbatch as usize;
        if operation.index > 0 {
            return Some((id - 1, operation.lag));
        }
        self.follows[microbatch]
            .then(|| (self.operations_of(microbatch - 1).end - 1, self.return_transfer[microbatch - 1] + operation.lag))
    }

    /// Whether the iteration ends with an operation, but for the transfer back, all-reduce, norm and optimizer.
    pub fn ends(&self, id: u32, times: &Times) -> bool {
        let operation = &self.operations[id as usize];
        let (microbatch, node) = (operation.microbatch as usize, operation.node as usize);
        let back = if operation.index == 2 * self.hops[microbatch] { self.return_transfer[microbatch] } else { 0 };
        let end = times.start[id as usize] + operation.length;
        operation.holds < 0 && end + back.max(self.allreduce[node]) + self.epilogue == times.iteration
    }

    /// Places the operations of `sequence` one after the other, each as early as its input and what its processor ran before
    /// allow; a forward without memory, and what follows in its microbatch, is put off until its node has some.
    /// False where the energy is above `limit`, or operations are left.
    pub fn decode(&mut self, sequence: &[u32], limit: f64, times: &mut Times, work: &mut u64) -> bool {
        self.reset();
        times.placed.clear();
        times.finish_sum = 0;
        let mut ended = self.floor;
        let most = if limit.is_finite() { limit as Time - self.epilogue } else { NEVER };
        let is_within = sequence.iter().all(|id| {
            let operation = &self.operations[*id as usize];
            let (microbatch, index) = (operation.microbatch as usize, operation.index);
            self.due[microbatch] = index + 1;
            // Otherwise its microbatch waits for memory.
            self.placed[microbatch] != index || self.advance(microbatch, most, times, &mut ended)
        });
        *work += times.placed.len() as u64;
        self.resumed.clear();
        times.iteration = ended + self.epilogue;
        is_within && times.placed.len() == sequence.len() && self.energy(times) <= limit
    }

    /// What schedules are compared by while annealing.
    pub fn energy(&self, times: &Times) -> f64 {
        energy(times.iteration, times.finish_sum, self.hops.len())
    }

    fn reset(&mut self) {
        self.free.fill(0);
        self.last.fill(NONE);
        self.held.fill(0);
        self.placed.fill(0);
        self.due.fill(0);
        self.waiting.clear();
        self.channels.clear();
        for (ready, follows) in self.ready.iter_mut().zip(&self.follows) {
            *ready = if *follows { NEVER } else { 0 };
        }
    }

    /// Places what is due of a microbatch, and of those that wait for it; false where that ends after `most`.
    fn advance(&mut self, microbatch: usize, most: Time, times: &mut Times, ended: &mut Time) -> bool {
        self.resumed.push(microbatch as u32);
        while let Some(microbatch) = self.resumed.pop() {
            let b = microbatch as usize;
            while self.placed[b] < self.due[b] && self.ready[b] != NEVER {
                let id = microbatch * self.width as u32 + self.placed[b];
                let operation = self.operations[id as usize];
                let node = operation.node as usize;
                if operation.holds > 0 && self.held[node] >= self.memory[node] {
                    self.waiting.push((operation.node, microbatch));
                    break;
                }
                let processor = self.processor_of[node] as usize;
                let start = (self.ready[b] + operation.lag).max(self.free[processor]);
                if start + operation.rest > most {
                    return false;
                }
                let end = start + operation.length;
                times.start[id as usize] = start;
                times.left[id as usize] = self.last[processor];
                times.placed.push(id);
                self.last[processor] = id;
                self.free[processor] = end;
                let output = self.messages.get(id as usize + 1).copied().flatten();
                let output = output.filter(|_| operation.index < 2 * self.hops[b]);
                self.ready[b] = self.channels.leave(output, end);
                self.placed[b] += 1;
                self.held[node] = self.held[node].wrapping_add_signed(operation.holds);
                if operation.holds < 0 {
                    self.finish(&operation, end, times, ended);
                }
            }
        }
        true
    }

    /// After a backward: the node has memory again, and the last one completes its microbatch.
    fn finish(&mut self, operation: &Operation, end: Time, times: &mut Times, ended: &mut Time) {
        let microbatch = operation.microbatch as usize;
        *ended = (*ended).max(end + self.allreduce[operation.node as usize]);
        if operation.index == 2 * self.hops[microbatch] {
            let completion = end + self.return_transfer[microbatch];
            times.finish_sum += completion;
            *ended = (*ended).max(completion);
            if self.follows.get(microbatch + 1).is_some_and(|follows| *follows) {
                self.ready[microbatch + 1] = completion;
                self.resumed.push(operation.microbatch + 1);
            }
        }
        if let Some(first) = self.waiting.iter().position(|(node, _)| *node == operation.node) {
            self.resumed.push(self.waiting.remove(first).1);
        }
    }
}
