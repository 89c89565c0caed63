//! Simulation of a plan as it was read.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{Deadlock, MicrobatchRoute, OrderGraph, Outcome, Simulator, TaskId};
use crate::bound::lower_bound_of;
use crate::budget::Budget;
use crate::contention::Contention;
use crate::error::{Result, invalid};
use crate::plan::{Kind, Plan, Predicted};
use crate::problem::{Instance, NO_STAGE};
use crate::time::seconds;

/// Which order the processors follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// The one that the plan states.
    Planned,
    /// The one that the dispatch rule makes.
    Rule,
}

/// The plan with the times of the simulator.
///
/// # Errors
/// [`crate::Error::Deadlock`], or [`crate::Error::Invalid`] where the tasks are not those of the routes.
pub fn resimulate(plan: &Plan, dispatch: Dispatch) -> Result<Plan> {
    let instance = plan.instance()?;
    let replay = Replay::new(plan, &instance)?;
    replay.timed(plan, &instance, dispatch, plan.predicted.lower_bound_s)
}

/// The plan where messages take turns like this, with the times of the simulator. Where they do so already it is the plan
/// as it stands.
///
/// # Errors
/// As [`resimulate`].
pub fn with_contention(plan: &Plan, contention: Contention) -> Result<Plan> {
    if contention == plan.cluster.contention() {
        return Ok(plan.clone());
    }
    resimulate(&plan.with_cluster(plan.cluster.clone().with_contention(contention))?, Dispatch::Planned)
}

/// The plan where nodes with equal numbers share a processor, as [`Cluster::with_processors`] has it, with the times of
/// the simulator: routes, and the order on each node, stay; nodes that share a processor take their tasks by the starts
/// that these have in the plan, of equal ones as the plan lists them. Where the same nodes share as in the plan it is the plan as it stands.
///
/// # Errors
/// As [`Cluster::with_processors`] and [`resimulate`].
pub fn on_processors(plan: &Plan, processors: &[Option<u32>]) -> Result<Plan> {
    let cluster = plan.cluster.with_processors(processors)?;
    if cluster == plan.cluster {
        return Ok(plan.clone());
    }
    let before = plan.instance()?;
    let Replay { microbatches, order, listed } = Replay::new(plan, &before)?;
    let mut simulator = Simulator::new(&before);
    simulator.load(&microbatches);
    let graph = OrderGraph::new(&before, &microbatches, &order).map_err(|deadlock| simulator.error_of(&deadlock))?;
    let plan = plan.with_cluster(cluster)?;
    let problem = plan.problem()?;
    let instance = plan.instance()?;
    let mut order = vec![Vec::new(); instance.node_count()];
    for task in graph.by_start(&listed) {
        order[instance.processor(simulator.node_of(task))].push(task);
    }
    let bound = lower_bound_of(&problem, &Budget::new(None, None))?;
    Replay { microbatches, order, listed }.timed(&plan, &instance, Dispatch::Planned, seconds(bound))
}

/// Full evaluations (routes and order anew each time) that one thread makes in `limit`: their number, and the
/// seconds that they took.
///
/// # Errors
/// As [`resimulate`].
pub fn count_evaluations(plan: &Plan, dispatch: Dispatch, limit: Duration) -> Result<(u64, f64)> {
    let instance = plan.instance()?;
    let replay = Replay::new(plan, &instance)?;
    let mut simulator = Simulator::new(&instance);
    let started = Instant::now();
    let mut count = 0;
    while count == 0 || started.elapsed() < limit {
        for _ in 0..100 {
            replay.run(&mut simulator, dispatch).map_err(|deadlock| simulator.error_of(&deadlock))?;
        }
        count += 100;
    }
    Ok((count, started.elapsed().as_secs_f64()))
}

/// A plan in the terms of the simulator. Microbatches may have any numbers and stand in any order in a plan;
/// here the waves of a route stand next to each other.
pub(crate) struct Replay {
    microbatches: Vec<MicrobatchRoute>,
    order: Vec<Vec<TaskId>>,
    /// All tasks as the plan lists them.
    listed: Vec<TaskId>,
}

impl Replay {
    /// Routes, the waves of one next to each other.
    pub(crate) fn microbatches(&self) -> &[MicrobatchRoute] {
        &self.microbatches
    }

    pub(crate) fn new(plan: &Plan, instance: &Instance) -> Result<Self> {
        for (i, microbatch) in plan.microbatches.iter().enumerate() {
            if let Some(node) =
                microbatch.nodes.iter().chain([&microbatch.source]).find(|n| instance.stage_of[**n] == NO_STAGE)
            {
                return invalid(format!("microbatches[{i}]"), format!("over node {node}"), "nodes that serve a stage");
            }
        }
        let mut sorted: Vec<usize> = (0..plan.microbatches.len()).collect();
        sorted.sort_by_key(|i| (plan.microbatches[*i].route, plan.microbatches[*i].wave, plan.microbatches[*i].id));
        let microbatches = sorted
            .iter()
            .map(|i| {
                let microbatch = &plan.microbatches[*i];
                let nodes = microbatch.nodes.iter().map(|n| *n as u32).collect();
                MicrobatchRoute {
                    id: microbatch.id,
                    source: microbatch.source,
                    route: microbatch.route,
                    wave: microbatch.wave,
                    class: 0,
                    nodes,
                }
            })
            .collect();
        let order = vec![Vec::new(); instance.node_count()];
        let mut replay = Self { microbatches, order, listed: Vec::new() };
        let mut simulator = Simulator::new(instance);
        simulator.load(&replay.microbatches);
        replay.listed = replay.listed_tasks(plan, &simulator)?;
        for id in &replay.listed {
            replay.order[simulator.processor_of(*id)].push(*id);
        }
        Ok(replay)
    }

    fn listed_tasks(&self, plan: &Plan, simulator: &Simulator<'_>) -> Result<Vec<TaskId>> {
        let index_of: FxHashMap<usize, usize> =
            self.microbatches.iter().enumerate().map(|(index, microbatch)| (microbatch.id, index)).collect();
        if index_of.len() != self.microbatches.len() {
            return invalid("microbatches", "an id that repeats", "a unique id for each");
        }
        let mut listed = Vec::with_capacity(plan.tasks.len());
        let mut seen = vec![false; simulator.task_count()];
        for (i, task) in plan.tasks.iter().enumerate() {
            let microbatch = index_of.get(&task.microbatch).copied().unwrap_or(usize::MAX);
            let known = microbatch < self.microbatches.len()
                && task.hop < self.microbatches[microbatch].nodes.len()
                && (task.kind != Kind::L || task.hop == 0);
            let id = if known { simulator.task(microbatch, task.kind, task.hop) } else { TaskId::MAX };
            if !known || simulator.node_of(id) != task.node || std::mem::replace(&mut seen[id as usize], true) {
                let name = format!("{}{}{} on node {}", task.microbatch, task.kind.letter(), task.hop, task.node);
                return invalid(format!("tasks[{i}]"), name, "each task of the routes once, on its node");
            }
            listed.push(id);
        }
        if let Some(missing) = seen.iter().position(|s| !s) {
            return invalid(
                "tasks",
                format!("without {}", simulator.name_of(missing as TaskId)),
                "each task of the routes once",
            );
        }
        Ok(listed)
    }

    /// `plan` with the times of the simulator; none takes less than `lower_bound_s`, but this one may.
    fn timed(&self, plan: &Plan, instance: &Instance, dispatch: Dispatch, lower_bound_s: f64) -> Result<Plan> {
        let mut simulator = Simulator::new(instance);
        let outcome = self.run(&mut simulator, dispatch).map_err(|deadlock| simulator.error_of(&deadlock))?;
        let dispatched = (dispatch == Dispatch::Rule).then(|| simulator.dispatched_order());
        let iteration_s = seconds(outcome.iteration);
        let lower_bound_s = lower_bound_s.min(iteration_s);
        let predicted = Predicted {
            iteration_s,
            pipeline_s: seconds(outcome.pipeline),
            allreduce_s: instance.allreduce.iter().map(|t| seconds(*t)).collect(),
            lower_bound_s,
            gap: Predicted::gap_of(iteration_s, lower_bound_s),
        };
        let mut solver = plan.solver.clone();
        if iteration_s > lower_bound_s * (1.0 + 1e-9) {
            solver.optimal = solver.optimal.and(Some(false));
        }
        let tasks = simulator.plan_tasks(dispatched.as_ref().unwrap_or(&self.order));
        Ok(Plan { tasks, predicted, solver, ..plan.clone() })
    }

    pub(crate) fn run(
        &self,
        simulator: &mut Simulator<'_>,
        dispatch: Dispatch,
    ) -> std::result::Result<Outcome, Deadlock> {
        simulator.load(&self.microbatches);
        match dispatch {
            Dispatch::Planned => simulator.run_order(&self.order),
            Dispatch::Rule => simulator.run_dispatch(),
        }
    }
}
