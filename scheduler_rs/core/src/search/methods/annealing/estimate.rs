//! How long an iteration over given routes will about take, without simulating it: the round trips of the routes, the
//! load of the processors and the time for which nodes hold microbatches. Kept up to date change by change.
//!
//! Each route, each processor's work and each node's memory is a time by which it can be done at the earliest. Together
//! they are a power sum of these times, which is about the longest of them, and falls whenever a long one does.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::problem::{Instance, NO_STAGE};
use crate::search::instance_view::InstanceView;
use crate::search::methods::routes::{Change, Path, Routes};
use crate::time::{NEVER, Time};

/// Numbers of nodes and processors.
type Numbers = SmallVec<[u32; 32]>;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Round trip of one microbatch of each route.
    trips: Vec<Time>,
    /// Work of each processor.
    loads: Vec<Time>,
    /// Time for which each node holds microbatches, summed over these.
    holds: Vec<Time>,
    /// From the start to a node and from it back, at least.
    around: Vec<Time>,
    /// The longest all-reduce, which follows the last microbatch.
    reduce: Time,
    /// Times are compared with this one.
    scale: f64,
    power: i32,
    sum: f64,
}

impl Estimate {
    /// Of complete routes; `scale` is about the time that is hoped for.
    #[must_use]
    pub fn new(view: InstanceView<'_>, routes: &Routes, scale: Time) -> Self {
        let n = view.instance.node_count();
        let mut estimate = Self {
            trips: vec![0; view.tasks.len()],
            loads: vec![0; n],
            holds: vec![0; n],
            around: Vec::new(),
            reduce: 0,
            scale: scale.max(1) as f64,
            power: 1,
            sum: 0.0,
        };
        estimate.rebuild(view, routes);
        estimate
    }

    /// Starts over with other routes.
    pub fn rebuild(&mut self, view: InstanceView<'_>, routes: &Routes) {
        self.loads.fill(0);
        self.holds.fill(0);
        self.around = all_around(view.instance);
        self.reduce = view.instance.allreduce.iter().copied().max().unwrap_or(0);
        for (route, task) in view.tasks.iter().enumerate() {
            self.loads[view.instance.processor(task.source)] +=
                task.waves as Time * view.instance.loss(task.class, task.source);
            self.add(view, route, routes.path(route), 1);
        }
        self.power = 0;
        self.raise(view, 1);
    }

    /// As [`Estimate::rebuild`], with the power that it has.
    pub fn rebuild_as_before(&mut self, view: InstanceView<'_>, routes: &Routes) {
        let power = self.power;
        self.rebuild(view, routes);
        self.raise(view, power);
    }

    /// Sets the power of the sum: the higher, the more the longest time counts.
    pub fn raise(&mut self, view: InstanceView<'_>, power: i32) {
        if power == self.power {
            return;
        }
        self.power = power;
        self.sum = (0..view.tasks.len()).map(|r| self.of_route(view, r)).sum::<f64>()
            + (0..self.loads.len()).map(|node| self.of_place(view, node)).sum::<f64>();
    }

    /// The power sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Round trip of one microbatch of a route, times its waves.
    #[must_use]
    pub fn route_time(&self, view: InstanceView<'_>, route: usize) -> Time {
        self.trips[route] * view.tasks[route].waves as Time
    }

    /// By how much a change lengthens its routes, in the terms of the sum.
    #[must_use]
    pub fn rise_of_routes(&self, view: InstanceView<'_>, change: &Change) -> f64 {
        let rise = |(route, path): &(u32, Path)| {
            let route = *route as usize;
            self.of_path(view, route, path) - self.of_route(view, route)
        };
        change.iter().map(rise).sum()
    }

    /// What a route would add to the sum on another path.
    #[must_use]
    pub fn of_path(&self, view: InstanceView<'_>, route: usize, path: &Path) -> f64 {
        self.power(self.trip(view, route, path) * view.tasks[route].waves as Time + self.reduce)
    }

    fn trip(&self, view: InstanceView<'_>, route: usize, path: &Path) -> Time {
        let task = view.tasks[route];
        let instance = view.instance;
        let mut before = task.source;
        let mut trip = instance.loss(task.class, task.source);
        for node in path.iter().map(|n| *n as usize) {
            trip += instance.transfer(before, node) + instance.transfer(node, before);
            trip += instance.forward(task.class, node) + instance.backward(task.class, node);
            before = node;
        }
        trip + instance.transfer(before, task.source) + instance.transfer(task.source, before)
    }

    /// Takes these routes out of the sum, and all that they ask of their nodes and of `others`: before these nodes
    /// change. Gives the nodes and their processors.
    pub fn lift(&mut self, view: InstanceView<'_>, routes: &Routes, affected: &[u32], others: &[usize]) -> Numbers {
        let mut nodes: Numbers = others.iter().map(|node| *node as u32).collect();
        nodes.extend(affected.iter().flat_map(|route| routes.path(*route as usize).iter().copied()));
        with_processors(view.instance, &mut nodes);
        self.sum -= self.cost_of(view, affected, &nodes);
        for route in affected {
            self.add(view, *route as usize, routes.path(*route as usize), -1);
        }
        nodes
    }

    /// Puts them back after the change; `nodes` is what [`Estimate::lift`] gave.
    pub fn drop(&mut self, view: InstanceView<'_>, routes: &Routes, affected: &[u32], others: &[usize], nodes: &[u32]) {
        for node in others {
            self.around[*node] = around(view.instance, *node);
        }
        for route in affected {
            self.add(view, *route as usize, routes.path(*route as usize), 1);
        }
        self.sum += self.cost_of(view, affected, nodes);
    }

    fn cost_of(&self, view: InstanceView<'_>, affected: &[u32], nodes: &[u32]) -> f64 {
        affected.iter().map(|route| self.of_route(view, *route as usize)).sum::<f64>()
            + nodes.iter().map(|node| self.of_place(view, *node as usize)).sum::<f64>()
    }

    /// Follows a change that `routes` has made; `before` are the paths that it replaced.
    pub fn follow(&mut self, view: InstanceView<'_>, routes: &Routes, before: &Change) {
        let mut nodes = Numbers::new();
        let held = view.instance.memory_is_held();
        for (route, path) in before {
            let after = routes.path(*route as usize);
            nodes.extend(path.iter().filter(|n| held || !after.contains(n)).copied());
            nodes.extend(after.iter().filter(|n| held || !path.contains(n)).copied());
        }
        with_processors(view.instance, &mut nodes);
        let affected: SmallVec<[u32; 4]> = before.iter().map(|(route, _)| *route).collect();
        self.sum -= self.cost_of(view, &affected, &nodes);
        for (route, path) in before {
            self.add(view, *route as usize, path, -1);
            self.add(view, *route as usize, routes.path(*route as usize), 1);
        }
        self.sum += self.cost_of(view, &affected, &nodes);
    }

    fn add(&mut self, view: InstanceView<'_>, route: usize, path: &Path, sign: Time) {
        let task = view.tasks[route];
        let instance = view.instance;
        let times = sign * task.waves as Time;
        let mut after = task.source;
        let mut trip = instance.loss(task.class, task.source);
        for node in path.iter().rev().map(|n| *n as usize) {
            let work = instance.forward(task.class, node) + instance.backward(task.class, node);
            trip += instance.transfer(node, after) + instance.transfer(after, node) + work;
            self.loads[instance.processor(node)] += times * work;
            self.holds[node] += times * trip;
            after = node;
        }
        if sign > 0 {
            self.trips[route] = trip + instance.transfer(task.source, after) + instance.transfer(after, task.source);
        }
    }

    fn of_route(&self, view: InstanceView<'_>, route: usize) -> f64 {
        self.power(self.route_time(view, route) + self.reduce)
    }

    /// The work of the processor of this number, and what the node of this number holds.
    fn of_place(&self, view: InstanceView<'_>, number: usize) -> f64 {
        let instance = view.instance;
        let by_holds = || self.power(self.holds[number] / Time::from(instance.memory[number]) + self.around[number]);
        if !instance.shares_processors() {
            if self.loads[number] == 0 {
                return 0.0;
            }
            let by_work = self.power(self.loads[number] + self.around[number]);
            return if instance.memory_is_held() { by_work + by_holds() } else { by_work };
        }
        let mut sum = 0.0;
        if self.loads[number] > 0 {
            let nodes = (0..instance.node_count()).filter(|node| instance.processor(*node) == number);
            sum += self.power(self.loads[number] + nodes.map(|node| self.around[node]).min().unwrap_or(0));
        }
        if instance.memory_is_held() && self.holds[number] > 0 {
            sum += by_holds();
        }
        sum
    }

    fn power(&self, time: Time) -> f64 {
        (time as f64 / self.scale).powi(self.power)
    }
}

/// Nodes and their processors, each number once and in order.
fn with_processors(instance: &Instance, numbers: &mut Numbers) {
    if instance.shares_processors() {
        for index in 0..numbers.len() {
            numbers.push(instance.processor(numbers[index] as usize) as u32);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
}

/// [`around`] of every node. Nodes of one site are as far from all sources, but for a source itself.
fn all_around(instance: &Instance) -> Vec<Time> {
    let mut known: FxHashMap<(usize, usize), Time> = FxHashMap::default();
    let is_source = |node: usize| instance.stage_of[node] == 0 && instance.sources.iter().any(|s| s.node == node);
    let of = |node: usize| {
        if instance.stage_of[node] == NO_STAGE || is_source(node) {
            return around(instance, node);
        }
        *known.entry(instance.place(node)).or_insert_with(|| around(instance, node))
    };
    (0..instance.node_count()).map(of).collect()
}

/// The least time before the first task of a node and after its last one.
fn around(instance: &Instance, node: usize) -> Time {
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
}
