//! Job-shop instances as instances of ours: the special case of forced routes in which nothing skips and nothing turns
//! back before everything is done.
//!
//! Every machine is a stage of one node, every job a source of one microbatch whose kind has the job's processing times
//! as forwards and its machines as forced route. Losses and backwards take no time, and so do transfers, but for those
//! to a source: they take longer than all tasks together. So every loss and backward happens after all forwards, and
//! the iteration is the makespan and two such transfers.

use skippipe_core::bound::lookahead::Lookahead;
use skippipe_core::budget::Budget;
use skippipe_core::problem::{Instance, MicrobatchClass, Problem};
use skippipe_core::route::{RouteTask, route_tasks};
use skippipe_core::rules::{Constraints, MemoryRule};
use skippipe_core::search::methods::cbs::{Subproblem, VisitDemand};
use skippipe_core::time::{NEVER, Rounding, Time};

use super::clusters::{equal_nodes, matrix};

/// One unit of processing time.
pub const UNIT: Time = 1_000_000_000;

/// As published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shop {
    pub name: String,
    /// Machine and processing time of each task of each job, in order.
    pub jobs: Vec<Vec<(usize, Time)>>,
    pub machines: usize,
    /// Proved least makespan.
    pub optimum: Time,
}

/// A shop as an instance.
#[derive(Clone, Debug)]
pub struct Encoded {
    pub instance: Instance,
    pub tasks: Vec<RouteTask>,
    /// Every job on every machine.
    pub demand: VisitDemand,
    /// An iteration is the makespan and this.
    pub constant: Time,
}

/// The shops of `data/jobshop.txt`.
pub fn shops() -> Vec<Shop> {
    let mut lines = include_str!("../data/jobshop.txt").lines().filter(|line| !line.starts_with('#'));
    let mut shops = Vec::new();
    while let Some(line) = lines.next() {
        let head: Vec<&str> = line.split_whitespace().collect();
        let [name, jobs, machines, optimum] = head[..] else { continue };
        let jobs = lines.by_ref().take(jobs.parse().unwrap()).map(job).collect();
        shops.push(Shop {
            name: name.to_owned(),
            jobs,
            machines: machines.parse().unwrap(),
            optimum: optimum.parse().unwrap(),
        });
    }
    shops
}

/// The shop of that name.
pub fn shop(name: &str) -> Shop {
    shops().into_iter().find(|shop| shop.name == name).unwrap()
}

fn job(line: &str) -> Vec<(usize, Time)> {
    let numbers: Vec<Time> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
    numbers.chunks(2).map(|task| (task[0] as usize, task[1])).collect()
}

impl Shop {
    /// Node of a machine; the jobs are the nodes before.
    pub fn node(&self, machine: usize) -> usize {
        self.jobs.len() + machine
    }

    /// As an instance of ours.
    pub fn encode(&self) -> Encoded {
        let jobs = self.jobs.len();
        let nodes = jobs + self.machines;
        let longest = self.jobs.iter().flatten().map(|task| task.1).sum::<Time>();
        let transfer = |from: usize, to: usize| if to < jobs && from >= jobs { longest as f64 } else { 0.0 };
        let cluster = equal_nodes([0.0; 3], 1, matrix(nodes, transfer));
        let rules = Constraints { cc2: false, cc3: false, tc1: MemoryRule::Off, waves: 1, ..Constraints::default() };
        let stages = std::iter::once((0..jobs).collect()).chain((jobs..nodes).map(|node| vec![node])).collect();
        let problem = Problem::new(cluster, stages, vec![], vec![1; jobs], 0.0, rules).unwrap();
        let mut instance = Instance::new(&problem, Rounding::Up);
        instance.classes = (0..jobs).map(|job| self.class(job)).collect();
        for (class, source) in instance.sources.iter_mut().enumerate() {
            source.class = class;
        }
        let tasks = route_tasks(&instance);
        let stages = self.machines + 1;
        let demand = VisitDemand {
            least: vec![jobs; stages],
            most: vec![jobs; stages],
            total: Some((jobs * stages, jobs * stages)),
            short: stages,
            long: stages,
            long_routes: None,
            classes: vec![],
        };
        Encoded { instance, tasks, demand, constant: 2 * longest * UNIT }
    }

    fn class(&self, job: usize) -> MicrobatchClass {
        let nodes = self.node(self.machines);
        let mut forward = vec![0; nodes];
        for (machine, time) in &self.jobs[job] {
            forward[self.node(*machine)] = time * UNIT;
        }
        let machines = self.jobs[job].iter().map(|task| self.node(task.0) as u32);
        let forced = Some(std::iter::once(job as u32).chain(machines).collect());
        MicrobatchClass { forward, backward: vec![0; nodes], loss: vec![0; nodes], forced }
    }
}

impl Encoded {
    /// Makespan of an iteration, in the shop's own units.
    pub fn makespan(&self, iteration: Time) -> Time {
        assert_eq!((iteration - self.constant) % UNIT, 0);
        (iteration - self.constant) / UNIT
    }

    /// What conflict-based search is asked: any makespan.
    pub fn subproblem(&self, work_limit: u64) -> Subproblem<'_> {
        Subproblem {
            instance: &self.instance,
            tasks: &self.tasks,
            demand: &self.demand,
            limit: NEVER,
            suboptimality: 1.0,
            work_limit,
        }
    }

    /// The admissible look-ahead.
    pub fn lookahead(&self) -> Lookahead {
        Lookahead::new(&self.instance, self.demand.long, &Budget::new(None, None), 1.0).unwrap()
    }
}
