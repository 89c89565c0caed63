//! Simulation of a given order: the longest path through microbatch chains and the orders of processors.

use smallvec::SmallVec;

use super::{Deadlock, NO_TASK, Outcome, Simulator, TaskId};
use crate::time::Time;

impl Simulator<'_> {
    /// Starts every task as early as its input, the task before it on its processor and, between waves, the
    /// completion of the wave before allow. `order` lists every task once, on its own processor.
    ///
    /// # Errors
    /// [`Deadlock`] where the order makes tasks wait for each other; with TC1 `held` also where a
    /// forward waits for memory that only a later task of the same node frees.
    pub fn run_order(&mut self, order: &[Vec<TaskId>]) -> Result<Outcome, Deadlock> {
        if self.instance.memory_is_held() {
            self.check_memory(order)?;
        }
        let count = self.node.len();
        let scratch = &mut self.scratch;
        scratch.waiting.clear();
        scratch.waiting.resize(count, 1); // for the task before it in its microbatch
        scratch.next_in_order.clear();
        scratch.next_in_order.resize(count, NO_TASK);
        for tasks in order {
            for pair in tasks.windows(2) {
                scratch.next_in_order[pair[0] as usize] = pair[1];
                scratch.waiting[pair[1] as usize] += 1;
            }
        }
        scratch.channels.reset(self.instance);
        self.start.fill(0);
        let mut ready = std::mem::take(&mut scratch.ready);
        ready.clear();
        for span in 0..self.spans.len() {
            let span = self.spans[span];
            if span.before == NO_TASK {
                self.release(span.first, span.out, &mut ready);
            }
        }
        let mut done = 0;
        while let Some(task) = ready.pop() {
            done += 1;
            let end = self.end_of(task);
            let follower = self.scratch.next_in_order[task as usize];
            if follower != NO_TASK {
                self.release(follower, end, &mut ready);
            }
            let span = self.spans[self.microbatch_of(task)];
            if task < span.first + 2 * span.hops {
                let next = task + 1;
                // Tasks of one processor come in its order here, and so do its messages.
                let (from, to) = (self.node_of(task), self.node_of(next));
                let travel = self.travel[next as usize];
                let arrival = self.scratch.channels.deliver(self.instance, from, to, travel, end);
                self.release(next, arrival, &mut ready);
            } else if span.after != NO_TASK {
                let next = self.spans[span.after as usize];
                self.release(next.first, end + span.return_transfer + next.out, &mut ready);
            }
        }
        self.scratch.ready = ready;
        if done == count { Ok(self.outcome()) } else { Err(self.cycle(order)) }
    }

    /// One thing less that `task` waits for; it starts no earlier than `time`.
    #[inline]
    fn release(&mut self, task: TaskId, time: Time, ready: &mut Vec<TaskId>) {
        let i = task as usize;
        self.start[i] = self.start[i].max(time);
        self.scratch.waiting[i] -= 1;
        if self.scratch.waiting[i] == 0 {
            ready.push(task);
        }
    }

    /// With a fixed order, memory is a matter of counting. A microbatch whose backward stands before its
    /// forward is left to [`Simulator::cycle`].
    fn check_memory(&mut self, order: &[Vec<TaskId>]) -> Result<(), Deadlock> {
        let mut position = std::mem::take(&mut self.scratch.next_in_order);
        position.clear();
        position.resize(self.node.len(), 0);
        let result = order.iter().try_for_each(|tasks| {
            for (i, task) in tasks.iter().enumerate() {
                position[*task as usize] = i as u32;
            }
            self.check_memory_of(tasks, &position)
        });
        self.scratch.next_in_order = position;
        result
    }

    fn check_memory_of(&self, tasks: &[TaskId], position: &[u32]) -> Result<(), Deadlock> {
        let mut held: SmallVec<[TaskId; 8]> = SmallVec::new(); // the backwards that free it again
        for (i, task) in tasks.iter().enumerate() {
            let span = self.spans[self.microbatch_of(*task)];
            let index = task - span.first;
            let backward = span.first + 2 * span.hops - index;
            if index > span.hops {
                held.retain(|b| b != task);
            } else if index < span.hops && position[backward as usize] > i as u32 {
                let node = self.node_of(*task);
                let on_node = || held.iter().copied().filter(|b| self.node_of(*b) == node);
                if on_node().count() >= self.instance.memory[node] as usize {
                    let next = on_node().min_by_key(|b| position[*b as usize]);
                    return Err(Deadlock([Some(*task), next].into_iter().flatten().collect()));
                }
                held.push(backward);
            }
        }
        Ok(())
    }

    /// Walks from a task that never became ready along what it waits for, until a task comes again.
    fn cycle(&self, order: &[Vec<TaskId>]) -> Deadlock {
        let mut before_in_order = vec![NO_TASK; self.node.len()];
        for tasks in order {
            for pair in tasks.windows(2) {
                before_in_order[pair[1] as usize] = pair[0];
            }
        }
        let stuck = |task: TaskId| task != NO_TASK && self.scratch.waiting[task as usize] > 0;
        let Some(mut task) = (0..self.node.len() as TaskId).find(|t| stuck(*t)) else { return Deadlock(Vec::new()) };
        let mut seen = vec![usize::MAX; self.node.len()];
        let mut path = Vec::new();
        while seen[task as usize] == usize::MAX {
            seen[task as usize] = path.len();
            path.push(task);
            let span = self.spans[self.microbatch_of(task)];
            let chain = if task > span.first {
                task - 1
            } else if span.before == NO_TASK {
                NO_TASK
            } else {
                let earlier = self.spans[span.before as usize];
                earlier.first + 2 * earlier.hops
            };
            let earlier = before_in_order[task as usize];
            // A stuck task waits for at least one stuck task; a finished one is never the reason.
            task = if stuck(earlier) { earlier } else { chain };
        }
        Deadlock(path.split_off(seen[task as usize]))
    }
}
