//! What a search is given and what it returns.

use crate::problem::Instance;
use crate::quotas::{Quotas, inner_stages};
use crate::route::{Lengths, RouteTask, StageSet};
use crate::rules::{Constraints, class_sets};
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
    /// The stages that a route may visit, where there are classes, at most [`MOST_CLASSES`]; else empty.
    pub classes: Vec<ClassDemand>,
}

impl VisitDemand {
    /// What the rules say of `count` of `all` routes together: of all of them, or what they leave to a part. None where
    /// that cannot be said: CC3 without CC1, since it is open then how many visits the inner stages share (a part of the routes,
    /// or any with a profile), and more than [`MOST_CLASSES`] classes.
    #[must_use]
    pub fn of(instance: &Instance, count: usize, all: usize) -> Option<Self> {
        let rules = &instance.rules;
        let lengths = Lengths::of(instance, all);
        let others = all - count;
        let has_classes = rules.classes.is_some();
        let mut demand = Self {
            least: vec![0; instance.stage_count()],
            most: vec![count; instance.stage_count()],
            // Classes say the lengths.
            total: (others == 0 && !has_classes).then_some((lengths.total, lengths.total)),
            short: lengths.short(),
            long: lengths.long(),
            long_routes: (others == 0 && !has_classes && lengths.long_routes() > 0)
                .then_some((lengths.long_routes(), lengths.long_routes())),
            classes: class_demands(rules, count, others)?,
        };
        if rules.cc3 || has_classes {
            if !rules.cc1 && !has_classes {
                return (others == 0 && rules.profile.is_none()).then_some(demand);
            }
            let quotas = Quotas::least_of(instance, &lengths);
            let stages = inner_stages(instance).chain(has_classes.then_some(0));
            for stage in stages {
                demand.least[stage] = quotas.least[stage].saturating_sub(others);
                demand.most[stage] = quotas.most[stage].min(count);
            }
        }
        Some(demand)
    }
}

/// What classes say of `count` of `count + others` routes; none where they are too many.
fn class_demands(rules: &Constraints, count: usize, others: usize) -> Option<Vec<ClassDemand>> {
    let mut demands: Vec<ClassDemand> = Vec::new();
    for set in class_sets(rules).unwrap_or_default() {
        match demands.iter_mut().find(|class| class.stages == set) {
            Some(class) => class.most += 1,
            None => demands.push(ClassDemand { stages: set, least: 0, most: 1 }),
        }
    }
    for class in &mut demands {
        (class.least, class.most) = (class.most.saturating_sub(others), class.most.min(count));
    }
    (demands.len() <= MOST_CLASSES).then_some(demands)
}

/// How many routes visit exactly these stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassDemand {
    /// The stages.
    pub stages: StageSet,
    /// The minimum number of routes.
    pub least: usize,
    /// The maximum number.
    pub most: usize,
}

/// Classes of an agent are bits of a word.
pub const MOST_CLASSES: usize = 64;

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
    pub path_evaluations: u64,
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
