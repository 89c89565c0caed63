//! What a search is given and what it returns.

use crate::problem::Instance;
use crate::route::RouteTask;
use crate::simulate::{MicrobatchRoute, TaskId};
use crate::time::Time;

/// How many stage visits the routes make together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisitDemand {
    /// Per stage, the minimum number of routes that visit it.
    pub least: Vec<usize>,
    /// Per stage, the maximum number.
    pub most: Vec<usize>,
    /// Minimum and maximum number of visits over all routes.
    pub total: Option<(usize, usize)>,
    /// Visits of a short route.
    pub short: usize,
    /// Visits of a long route: at most one more than `short`.
    pub long: usize,
    /// Minimum and maximum number of long routes.
    pub long_routes: Option<(usize, usize)>,
}

/// The routes to plan: all of an instance, or those of some sources alone as a relaxation.
#[derive(Clone, Copy, Debug)]
pub struct Subproblem<'a> {
    /// Its durations are taken as they are: round them down for lower bounds and up for plans.
    pub instance: &'a Instance,
    /// The routes to find.
    pub tasks: &'a [RouteTask],
    /// How many visits they make together.
    pub demand: &'a VisitDemand,
    /// Exclusive upper bound on the iteration times of interest (norm and optimizer excluded), in nanoseconds.
    pub limit: Time,
    /// Suboptimality factor, at least 1: when the search ends by itself, its best solution costs at most this many
    /// times the lower bound.
    pub suboptimality: f64,
    /// Limit on path evaluations plus tree nodes.
    pub work_limit: u64,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// The tree is exhausted: a proof.
    Exhausted,
    /// The time, work or memory limit was reached.
    Limit,
}

/// An execution of all routes and its makespan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The microbatches, those of one task next to each other; `route` is the number of the task.
    pub microbatches: Vec<MicrobatchRoute>,
    /// Task order of every node, in the simulator's numbering of `microbatches`.
    pub order: Vec<Vec<TaskId>>,
    /// Iteration time in nanoseconds, norm and optimizer excluded.
    pub value: Time,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Lower bound: no execution takes less than the smaller of this and the subproblem's limit.
    pub bound: Time,
    /// The best execution below the limit.
    pub best: Option<Solution>,
    /// Why the search ended.
    pub termination: Termination,
    /// Counters of the search.
    pub statistics: Statistics,
}

/// Counters of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Tree nodes created.
    pub nodes: u64,
    /// Partial paths visited by path enumeration.
    pub listed: u64,
    /// Path evaluations by the low level.
    pub labels: u64,
    /// Branchings on stages over or under their quota.
    pub quota_conflicts: u64,
    /// Branchings on route lengths.
    pub length_conflicts: u64,
    /// Branchings on node memory.
    pub memory_conflicts: u64,
    /// Branchings on tasks that overlap on a node.
    pub overlap_conflicts: u64,
    /// Branchings on paths that the precedence constraints delay.
    pub detours: u64,
    /// Branchings on cardinal conflicts: every child has a higher bound.
    pub cardinal: u64,
    /// Constraints implied because every other child of a branching is infeasible.
    pub implied: u64,
    /// Agents moved to a path with less slack and fewer conflicts at no cost.
    pub bypasses: u64,
    /// Children dropped because their constraints occur elsewhere in the tree.
    pub duplicates: u64,
    /// Work, best value ([`crate::time::NEVER`] while there is none) and lower bound, whenever either changed.
    pub events: Vec<(u64, Time, Time)>,
}
