//! Changes of a schedule: each makes a changed sequence, and takes back what it did where the schedule does not stay.

use rand::RngExt;
use smallvec::SmallVec;

use crate::search::methods::routes::{Change, Path};
use crate::search::methods::schedule_annealing::ScheduleAnnealing;
use crate::search::methods::schedule_annealing::decode::NONE;
use crate::time::Time;

/// How often the allocation is changed rather than the schedule, where it may be.
const ALLOCATIONS: f64 = 0.1;
/// How often a route is changed, and how often two microbatches exchange positions; else a task moves.
const ROUTES: f64 = 0.4;
const EXCHANGES: f64 = 0.1;
/// How often what is changed lies on a critical path.
const CRITICAL_TASK: f64 = 0.7;
const CRITICAL_ROUTE: f64 = 0.5;
/// The most tasks of its processor that a task passes, and how often it passes one more.
const REACH: usize = 3;
const FURTHER: f64 = 0.3;

/// Some operations, few of them.
type Few<T> = SmallVec<[T; 64]>;

impl ScheduleAnnealing {
    /// Tries one change.
    pub(super) fn change(&mut self) {
        if self.placement.is_some() && self.rng.random_bool(ALLOCATIONS) {
            self.try_allocation();
            return;
        }
        let draw = self.rng.random::<f64>();
        if draw < ROUTES {
            self.try_route();
        } else if draw < ROUTES + EXCHANGES {
            self.try_exchange();
        } else {
            self.try_move();
        }
    }

    /// A task goes before another one of its processor, or that one behind it.
    fn try_move(&mut self) {
        let task = if self.rng.random_bool(CRITICAL_TASK) { self.critical_task() } else { self.any_task() };
        let Some(task) = task else { return };
        let mut other = self.current.left[task as usize];
        if other == NONE {
            return;
        }
        let mut passed = 1;
        while passed < REACH && self.rng.random_bool(FURTHER) {
            let next = self.current.left[other as usize];
            if next == NONE {
                break;
            }
            other = next;
            passed += 1;
        }
        let is_possible =
            if self.rng.random_bool(0.5) { self.move_behind(other, task) } else { self.move_before(task, other) };
        if is_possible {
            self.judge();
        }
    }

    /// The sequence with `task`, and what it waits for, before `other`; false where it waits for `other` itself.
    fn move_before(&mut self, task: u32, other: u32) -> bool {
        let (from, to) = (self.position(other), self.position(task));
        self.changed.clone_from(&self.sequence);
        let mut moved: Few<u32> = SmallVec::from_iter([task]);
        let mut write = to;
        for position in (from..to).rev() {
            let id = self.sequence[position];
            let is_waited_for = moved.iter().any(|later| {
                let follows = *later != task && self.current.left[*later as usize] == id;
                follows || self.decoder.before(*later).is_some_and(|(before, _)| before == id)
            });
            if is_waited_for {
                if id == other {
                    return false;
                }
                moved.push(id);
            } else {
                self.changed[write] = id;
                write -= 1;
            }
        }
        for (position, id) in (from..).zip(moved.iter().rev()) {
            self.changed[position] = *id;
        }
        true
    }

    /// The sequence with `task`, and what waits for it, behind `other`; false where `other` itself waits for it.
    fn move_behind(&mut self, task: u32, other: u32) -> bool {
        let (from, to) = (self.position(task), self.position(other));
        self.changed.clone_from(&self.sequence);
        let mut moved: Few<u32> = SmallVec::from_iter([task]);
        let mut write = from;
        for position in from + 1..=to {
            let id = self.sequence[position];
            let left = self.current.left[id as usize];
            let waits = (left != task && moved.contains(&left))
                || self.decoder.before(id).is_some_and(|(before, _)| moved.contains(&before));
            if waits {
                if id == other {
                    return false;
                }
                moved.push(id);
            } else {
                self.changed[write] = id;
                write += 1;
            }
        }
        for (position, id) in (write..).zip(&moved) {
            self.changed[position] = *id;
        }
        true
    }

    /// Where an operation stands in the sequence.
    fn position(&self, id: u32) -> usize {
        let start = |id: u32| self.current.start[id as usize];
        let first = self.sequence.partition_point(|other| start(*other) < start(id));
        first + self.sequence[first..].iter().position(|other| *other == id).unwrap_or(0)
    }

    /// Two microbatches exchange their positions in the sequence, from one of their tasks on.
    fn try_exchange(&mut self) {
        let count = self.decoder.hops.len();
        let (a, b) = (self.rng.random_range(0..count), self.rng.random_range(0..count));
        let hops = self.decoder.hops[a];
        if a == b || hops != self.decoder.hops[b] {
            return;
        }
        let from = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(0..=2 * hops) };
        let (first_a, first_b) = (self.decoder.operations_of(a).start, self.decoder.operations_of(b).start);
        self.changed.clear();
        for id in &self.sequence {
            let operation = &self.decoder.operations[*id as usize];
            let other = match operation.microbatch as usize {
                _ if operation.index < from => *id,
                microbatch if microbatch == a => first_b + operation.index,
                microbatch if microbatch == b => first_a + operation.index,
                _ => *id,
            };
            self.changed.push(other);
        }
        self.judge();
    }

    /// One route or two take other paths.
    fn try_route(&mut self) {
        let critical = if self.rng.random_bool(CRITICAL_ROUTE) { self.critical_task() } else { None };
        let route = match critical {
            Some(task) => self.route_of[self.decoder.operations[task as usize].microbatch as usize] as usize,
            None => self.rng.random_range(0..self.owned.tasks.len()),
        };
        let view = self.owned.view();
        let Some(change) = self.routes.propose(view, route, &mut self.rng) else { return };
        let Some(back) = self.routes.apply(view, change) else { return };
        self.reroute(&back);
        if !self.judge() {
            let routes: SmallVec<[usize; 2]> = back.iter().map(|(route, _)| *route as usize).collect();
            self.routes.undo(self.owned.view(), back);
            for route in routes {
                self.write(route);
            }
        }
    }

    /// The sequence with the tasks of changed routes where they are likely to run: on a node that stays, when they ran
    /// there; on another one, some time between their neighbours. `back` has the paths that the routes had.
    pub(super) fn reroute(&mut self, back: &Change) {
        let mut keyed: Few<(Time, u32)> = SmallVec::new();
        for (route, old) in back {
            let route = *route as usize;
            for wave in 0..self.owned.tasks[route].waves {
                self.key_tasks(self.first[route] + wave, route, old, &mut keyed);
            }
        }
        for (route, _) in back {
            self.write(*route as usize);
        }
        keyed.sort_by_key(|(time, _)| *time);
        let mut keyed = keyed.into_iter().peekable();
        self.changed.clear();
        for id in &self.sequence {
            let microbatch = *id as usize / self.decoder.width;
            if back.iter().any(|(route, _)| *route == self.route_of[microbatch]) {
                continue;
            }
            while let Some((_, task)) = keyed.next_if(|(time, _)| *time < self.current.start[*id as usize]) {
                self.changed.push(task);
            }
            self.changed.push(*id);
        }
        self.changed.extend(keyed.map(|(_, task)| task));
    }

    /// When the tasks of a microbatch are likely to run on the new path of its route, which was `old`.
    fn key_tasks(&mut self, microbatch: usize, route: usize, old: &Path, keyed: &mut Few<(Time, u32)>) {
        let first = (microbatch * self.decoder.width) as u32;
        let path = self.routes.path(route);
        let (hops, old_hops) = (path.len(), old.len());
        let started = |index: usize| self.current.start[first as usize + index];
        let known = |index: usize| {
            if index == hops {
                return Some(started(old_hops));
            }
            let hop = if index < hops { index } else { 2 * hops - index };
            let before = old.iter().position(|node| *node == path[hop])?;
            Some(started(if index < hops { before } else { 2 * old_hops - before }))
        };
        let times: SmallVec<[Option<Time>; 64]> = (0..=2 * hops).map(known).collect();
        let mut least = if self.decoder.follows[microbatch] { started(0) } else { 0 };
        for index in 0..=2 * hops {
            let next = || times[index..].iter().copied().flatten().next().unwrap_or(started(2 * old_hops)).max(least);
            let time = match times[index] {
                Some(time) => time,
                None => least + (self.rng.random::<f64>() * (next() - least) as f64) as Time,
            };
            least = least.max(time);
            keyed.push((least, first + index as u32));
        }
    }

    fn any_task(&mut self) -> Option<u32> {
        (!self.sequence.is_empty()).then(|| self.sequence[self.rng.random_range(0..self.sequence.len())])
    }

    /// A task of a critical path; none where nothing but an all-reduce takes that long.
    fn critical_task(&mut self) -> Option<u32> {
        if self.critical.is_empty() {
            self.trace();
        }
        (!self.critical.is_empty()).then(|| self.critical[self.rng.random_range(0..self.critical.len())])
    }

    /// Follows a critical path from its end.
    fn trace(&mut self) {
        let decoder = &self.decoder;
        let end_of = |id: u32| self.current.start[id as usize] + decoder.operations[id as usize].length;
        let last: Few<u32> = self.sequence.iter().copied().filter(|id| decoder.ends(*id, &self.current)).collect();
        if last.is_empty() {
            return;
        }
        let mut next = Some(last[self.rng.random_range(0..last.len())]);
        while let Some(id) = next {
            self.critical.push(id);
            let start = self.current.start[id as usize];
            let left = Some(self.current.left[id as usize]).filter(|left| *left != NONE && end_of(*left) == start);
            let input = decoder.before(id).filter(|(before, lag)| end_of(*before) + lag == start).map(|(id, _)| id);
            next = match (left, input) {
                (Some(left), Some(input)) => Some(if self.rng.random_bool(0.5) { left } else { input }),
                // The message with its input waited for others of its sender.
                (None, None) => decoder.before(id).map(|(before, _)| before),
                (left, input) => left.or(input),
            };
        }
    }
}
