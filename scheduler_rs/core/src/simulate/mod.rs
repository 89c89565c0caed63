//! The event simulator: the single source of truth for a plan's times.
//!
//! [`Simulator`] takes the routes of all microbatches and gives every task its time, either for a given
//! order on each processor ([`Simulator::run_order`]) or for the order that the dispatch rule makes
//! ([`Simulator::run_dispatch`]). It reuses its memory, so that a search can call it many thousand
//! times a second.
//!
//! Orders are by [`Instance::processor`]: the number of a node that shares its processor with none is its own.

mod dispatch;
mod graph;
mod order;
mod replay;

pub use graph::{OrderGraph, Replaced};
pub(crate) use replay::Replay;
pub use replay::{Dispatch, count_evaluations, on_processors, resimulate, with_contention};

use crate::contention::Channels;
use crate::error::{Error, TaskName};
use crate::plan::{Kind, Task};
use crate::problem::Instance;
use crate::time::{Time, seconds};

/// A microbatch as the simulator sees it. The waves of one route stand next to each other, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchRoute {
    /// Its number in the plan; where the dispatch rule sees two alike, the lower goes first.
    pub id: usize,
    /// Stage-0 node that it starts from and returns to.
    pub source: usize,
    /// Route number; equal numbers are waves of one route.
    pub route: usize,
    /// Position among those, from 0.
    pub wave: usize,
    /// Its class: an index into [`Instance::classes`].
    pub class: usize,
    /// Nodes in order of the forward pass, at least one.
    pub nodes: Vec<u32>,
}

/// Number of a task: those of one microbatch are consecutive, `F0 .. F(h-1) L B(h-1) .. B0`.
pub type TaskId = u32;

/// When everything ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Completion of the last microbatch: its last gradient is back at its source.
    pub pipeline: Time,
    /// With all-reduce, norm and step.
    pub iteration: Time,
    /// Sum of the completion times of the microbatches; breaks ties between equal iterations.
    pub finish_sum: Time,
}

/// Tasks that wait for each other in a cycle, each for the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock(pub Vec<TaskId>);

const NO_TASK: TaskId = TaskId::MAX;

/// One microbatch's tasks and links.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: TaskId,
    hops: u32,
    id: usize,
    /// Microbatch whose completion lets this one start, `NO_TASK` for wave 0.
    before: u32,
    /// The next wave, `NO_TASK` for the last.
    after: u32,
    /// Transfer from the source to the first node and back; 0 with CC1.
    out: Time,
    return_transfer: Time,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Simulator<'a> {
    instance: &'a Instance,
    spans: Vec<Span>,
    /// Per task: node, microbatch, duration, transfer of its input from the task before it.
    node: Vec<u32>,
    microbatch: Vec<u32>,
    length: Vec<Time>,
    travel: Vec<Time>,
    start: Vec<Time>,
    scratch: Scratch,
}

/// What a [`Simulator`] keeps between runs, without the instance: for searches that change the instance meanwhile.
#[derive(Debug, Default)]
pub struct Workspace {
    spans: Vec<Span>,
    node: Vec<u32>,
    microbatch: Vec<u32>,
    length: Vec<Time>,
    travel: Vec<Time>,
    start: Vec<Time>,
    scratch: Scratch,
}

impl Workspace {
    /// Completion time of microbatch number `microbatch` in the last run.
    #[must_use]
    pub fn completion_of(&self, microbatch: usize) -> Time {
        let span = self.spans[microbatch];
        let last = (span.first + 2 * span.hops) as usize;
        self.start[last] + self.length[last] + span.return_transfer
    }
}

/// Buffers of the two modes.
#[derive(Debug, Default)]
struct Scratch {
    waiting: Vec<u8>,
    next_in_order: Vec<TaskId>,
    ready: Vec<TaskId>,
    channels: Channels,
    dispatch: dispatch::Buffers,
}

impl<'a> Simulator<'a> {
    /// An empty simulator.
    #[must_use]
    pub fn new(instance: &'a Instance) -> Self {
        Self::with(instance, Workspace::default())
    }

    /// A simulator in the memory of another one.
    #[must_use]
    pub fn with(instance: &'a Instance, workspace: Workspace) -> Self {
        let Workspace { spans, node, microbatch, length, travel, start, scratch } = workspace;
        Self { instance, spans, node, microbatch, length, travel, start, scratch }
    }

    /// Its memory, with the times of the last run.
    #[must_use]
    pub fn into_workspace(self) -> Workspace {
        let Self { instance: _, spans, node, microbatch, length, travel, start, scratch } = self;
        Workspace { spans, node, microbatch, length, travel, start, scratch }
    }

    /// Takes the microbatches of one iteration.
    pub fn load(&mut self, microbatches: &[MicrobatchRoute]) {
        let instance = self.instance;
        self.spans.clear();
        for column in [&mut self.node, &mut self.microbatch] {
            column.clear();
        }
        for column in [&mut self.length, &mut self.travel] {
            column.clear();
        }
        for (b, microbatch) in microbatches.iter().enumerate() {
            let first = self.node.len() as TaskId;
            let source = microbatch.source;
            let (front, back) = (microbatch.nodes[0] as usize, microbatch.nodes[microbatch.nodes.len() - 1] as usize);
            let follows = b > 0 && microbatches[b - 1].route == microbatch.route;
            let out = instance.transfer(source, front);
            let mut previous = source;
            for node in &microbatch.nodes {
                let node = *node as usize;
                self.push(node, b, instance.forward(microbatch.class, node), instance.transfer(previous, node));
                previous = node;
            }
            self.push(source, b, instance.loss(microbatch.class, source), instance.transfer(back, source));
            previous = source;
            for node in microbatch.nodes.iter().rev() {
                let node = *node as usize;
                self.push(node, b, instance.backward(microbatch.class, node), instance.transfer(previous, node));
                previous = node;
            }
            if follows {
                self.spans[b - 1].after = b as u32;
            }
            self.spans.push(Span {
                first,
                hops: microbatch.nodes.len() as u32,
                id: microbatch.id,
                before: if follows { b as u32 - 1 } else { NO_TASK },
                after: NO_TASK,
                out,
                return_transfer: instance.transfer(front, source),
            });
        }
        self.start.clear();
        self.start.resize(self.node.len(), 0);
    }

    fn push(&mut self, node: usize, microbatch: usize, length: Time, travel: Time) {
        self.node.push(node as u32);
        self.microbatch.push(microbatch as u32);
        self.length.push(length);
        self.travel.push(travel);
    }

    /// Number of tasks.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.node.len()
    }

    /// Number of microbatches.
    #[must_use]
    pub fn microbatch_count(&self) -> usize {
        self.spans.len()
    }

    /// The tasks of microbatch number `microbatch` (its index in what was loaded).
    #[must_use]
    pub fn tasks_of(&self, microbatch: usize) -> std::ops::Range<TaskId> {
        let span = self.spans[microbatch];
        span.first..span.first + 2 * span.hops + 1
    }

    /// Node of a task.
    #[must_use]
    pub fn node_of(&self, task: TaskId) -> usize {
        self.node[task as usize] as usize
    }

    /// Processor of a task.
    #[must_use]
    pub fn processor_of(&self, task: TaskId) -> usize {
        self.instance.processor(self.node_of(task))
    }

    /// Index of its microbatch in what was loaded.
    #[must_use]
    pub fn microbatch_of(&self, task: TaskId) -> usize {
        self.microbatch[task as usize] as usize
    }

    /// Start of a task, after a run that did not deadlock.
    #[must_use]
    pub fn start_of(&self, task: TaskId) -> Time {
        self.start[task as usize]
    }

    /// End of a task, after a run that did not deadlock.
    #[must_use]
    pub fn end_of(&self, task: TaskId) -> Time {
        self.start[task as usize] + self.length[task as usize]
    }

    /// Kind and hop of a task.
    #[must_use]
    pub fn kind_of(&self, task: TaskId) -> (Kind, usize) {
        let span = self.spans[self.microbatch_of(task)];
        let index = task - span.first;
        if index < span.hops {
            (Kind::F, index as usize)
        } else if index == span.hops {
            (Kind::L, 0)
        } else {
            (Kind::B, (2 * span.hops - index) as usize)
        }
    }

    /// Task of a microbatch by kind and hop.
    #[must_use]
    pub fn task(&self, microbatch: usize, kind: Kind, hop: usize) -> TaskId {
        let span = self.spans[microbatch];
        match kind {
            Kind::F => span.first + hop as TaskId,
            Kind::L => span.first + span.hops,
            Kind::B => span.first + 2 * span.hops - hop as TaskId,
        }
    }

    /// A task's name in messages.
    #[must_use]
    pub fn name_of(&self, task: TaskId) -> TaskName {
        let (kind, hop) = self.kind_of(task);
        TaskName {
            microbatch: self.spans[self.microbatch_of(task)].id,
            kind: kind.letter(),
            hop,
            node: self.node_of(task),
        }
    }

    /// A deadlock with its tasks by name.
    #[must_use]
    pub fn error_of(&self, deadlock: &Deadlock) -> Error {
        Error::Deadlock(deadlock.0.iter().map(|task| self.name_of(*task)).collect())
    }

    /// The tasks as a plan lists them: processor by processor, in `order`, with the times of the last run.
    #[must_use]
    pub fn plan_tasks(&self, order: &[Vec<TaskId>]) -> Vec<Task> {
        let task = |id: &TaskId| {
            let name = self.name_of(*id);
            let (kind, hop) = self.kind_of(*id);
            let (start_s, end_s) = (seconds(self.start_of(*id)), seconds(self.end_of(*id)));
            Task { node: name.node, microbatch: name.microbatch, kind, hop, start_s, end_s }
        };
        order.iter().flatten().map(task).collect()
    }

    /// Completion time of microbatch number `microbatch`.
    #[must_use]
    pub fn completion_of(&self, microbatch: usize) -> Time {
        let span = self.spans[microbatch];
        self.end_of(span.first + 2 * span.hops) + span.return_transfer
    }

    /// From the times of all tasks to the time of the iteration.
    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut reduced = self.instance.allreduce.iter().copied().max().unwrap_or(0);
        for microbatch in 0..self.spans.len() {
            let completion = self.completion_of(microbatch);
            outcome.pipeline = outcome.pipeline.max(completion);
            outcome.finish_sum += completion;
            let span = self.spans[microbatch];
            for task in span.first + span.hops + 1..=span.first + 2 * span.hops {
                let stage = self.instance.stage_of[self.node_of(task)];
                reduced = reduced.max(self.end_of(task) + self.instance.allreduce[stage]);
            }
        }
        outcome.iteration = outcome.pipeline.max(reduced) + self.instance.epilogue;
        outcome
    }
}
