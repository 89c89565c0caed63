//! How long an iteration over given routes will about take, without simulating it: the ways of the routes, the load
//! of the nodes and the time for which they hold microbatches. Kept up to date change by change.
//!
//! Each route, each node's work and each node's memory is a time by which it can be done at the earliest. Together
//! they are a power sum of these times, which is about the longest of them, and falls whenever a long one does.

use smallvec::SmallVec;

use crate::problem::{Instance, NO_STAGE};
use crate::time::{NEVER, Time};

use super::routes::{Change, Ground, Path, Routes};

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Way out and home of one microbatch of each route.
    trips: Vec<Time>,
    /// Work of each node.
    loads: Vec<Time>,
    /// Time for which each node holds microbatches, summed over these.
    holds: Vec<Time>,
    /// From the start to a node and from it home, at least.
    around: Vec<Time>,
    /// Times are compared with this one.
    scale: f64,
    power: i32,
    sum: f64,
}

impl Estimate {
    /// Of complete routes; `scale` is about the time that is hoped for.
    #[must_use]
    pub fn new(on: Ground<'_>, routes: &Routes, scale: Time) -> Self {
        let n = on.instance.node_count();
        let mut estimate = Self {
            trips: vec![0; on.tasks.len()],
            loads: vec![0; n],
            holds: vec![0; n],
            around: around(on.instance),
            scale: scale.max(1) as f64,
            power: 1,
            sum: 0.0,
        };
        estimate.rebuild(on, routes);
        estimate
    }

    /// Starts over with other routes.
    pub fn rebuild(&mut self, on: Ground<'_>, routes: &Routes) {
        self.loads.fill(0);
        self.holds.fill(0);
        for (route, task) in on.tasks.iter().enumerate() {
            self.loads[task.source] += task.waves as Time * on.instance.loss(task.load, task.source);
            self.add(on, route, routes.path(route), 1);
        }
        self.power = 0;
        self.raise(on, 1);
    }

    /// Sets the power of the sum: the higher, the more the longest time counts.
    pub fn raise(&mut self, on: Ground<'_>, power: i32) {
        if power == self.power {
            return;
        }
        self.power = power;
        self.sum = (0..on.tasks.len()).map(|r| self.of_route(on, r)).sum::<f64>()
            + (0..self.loads.len()).map(|node| self.of_node(on, node)).sum::<f64>();
    }

    /// The power sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Way out and home of one microbatch of a route, times its waves.
    #[must_use]
    pub fn way(&self, on: Ground<'_>, route: usize) -> Time {
        self.trips[route] * on.tasks[route].waves as Time
    }

    /// By how much a change lengthens the ways of its routes, in the terms of the sum.
    #[must_use]
    pub fn rise_of_ways(&self, on: Ground<'_>, change: &Change) -> f64 {
        let rise = |(route, path): &(u32, Path)| {
            let route = *route as usize;
            self.of_path(on, route, path) - self.of_route(on, route)
        };
        change.iter().map(rise).sum()
    }

    /// What a route would add to the sum on another path.
    #[must_use]
    pub fn of_path(&self, on: Ground<'_>, route: usize, path: &Path) -> f64 {
        self.power(self.trip(on, route, path) * on.tasks[route].waves as Time)
    }

    fn trip(&self, on: Ground<'_>, route: usize, path: &Path) -> Time {
        let task = on.tasks[route];
        let instance = on.instance;
        let mut before = task.source;
        let mut trip = instance.loss(task.load, task.source);
        for node in path.iter().map(|n| *n as usize) {
            trip += instance.transfer(before, node) + instance.transfer(node, before);
            trip += instance.forward(task.load, node) + instance.backward(task.load, node);
            before = node;
        }
        trip + instance.transfer(before, task.source) + instance.transfer(task.source, before)
    }

    /// Follows a change that `routes` has made; `before` are the paths that it replaced.
    pub fn follow(&mut self, on: Ground<'_>, routes: &Routes, before: &Change) {
        let mut nodes: SmallVec<[u32; 32]> = SmallVec::new();
        let held = on.instance.memory_is_held();
        for (route, path) in before {
            let after = routes.path(*route as usize);
            nodes.extend(path.iter().filter(|n| held || !after.contains(n)).copied());
            nodes.extend(after.iter().filter(|n| held || !path.contains(n)).copied());
        }
        nodes.sort_unstable();
        nodes.dedup();
        let cost = |estimate: &Self| {
            before.iter().map(|(route, _)| estimate.of_route(on, *route as usize)).sum::<f64>()
                + nodes.iter().map(|node| estimate.of_node(on, *node as usize)).sum::<f64>()
        };
        self.sum -= cost(self);
        for (route, path) in before {
            self.add(on, *route as usize, path, -1);
            self.add(on, *route as usize, routes.path(*route as usize), 1);
        }
        self.sum += cost(self);
    }

    fn add(&mut self, on: Ground<'_>, route: usize, path: &Path, sign: Time) {
        let task = on.tasks[route];
        let instance = on.instance;
        let times = sign * task.waves as Time;
        let mut after = task.source;
        let mut trip = instance.loss(task.load, task.source);
        for node in path.iter().rev().map(|n| *n as usize) {
            let work = instance.forward(task.load, node) + instance.backward(task.load, node);
            trip += instance.transfer(node, after) + instance.transfer(after, node) + work;
            self.loads[node] += times * work;
            self.holds[node] += times * trip;
            after = node;
        }
        if sign > 0 {
            self.trips[route] = trip + instance.transfer(task.source, after) + instance.transfer(after, task.source);
        }
    }

    fn of_route(&self, on: Ground<'_>, route: usize) -> f64 {
        self.power(self.way(on, route))
    }

    fn of_node(&self, on: Ground<'_>, node: usize) -> f64 {
        if self.loads[node] == 0 {
            return 0.0;
        }
        let by_work = self.power(self.loads[node] + self.around[node]);
        if !on.instance.memory_is_held() {
            return by_work;
        }
        by_work + self.power(self.holds[node] / Time::from(on.instance.memory[node]) + self.around[node])
    }

    fn power(&self, time: Time) -> f64 {
        (time as f64 / self.scale).powi(self.power)
    }
}

/// For each node the least time before its first task and after its last one.
fn around(instance: &Instance) -> Vec<Time> {
    (0..instance.node_count())
        .map(|node| {
            if instance.stage_of[node] == NO_STAGE {
                return 0;
            }
            let by = |source: usize| {
                if source == node {
                    return 0;
                }
                instance.transfer(source, node) + instance.transfer(node, source) + instance.least_work(source)
            };
            instance.sources.iter().map(|s| by(s.node)).min().unwrap_or(NEVER)
        })
        .collect()
}
