//! The search over allocations: which one there is for which strategy.
//!
//! `skippipe` and `full-routed` under TC2 change allocation, routes and order together (`joint_search`: `joint_annealing`,
//! then `schedule_chains` or the `exhaustive` search of small clusters); `full_routed` begins with the allocation of straight
//! pipelines; `local_search` is for strategies whose plan follows from an allocation; `unused_nodes` leaves nodes out.

mod exhaustive;
mod full_routed;
mod joint_annealing;
mod joint_search;
mod local_search;
mod schedule_chains;
mod unused_nodes;
#[cfg(test)]
mod unused_nodes_tests;

use self::joint_search::JointSearch;
use super::fixed_allocation::{asked_of, plan_allocated};
use crate::allocate::joint::AllocationScope;
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::problem::Problem;
use crate::request::Options;

/// The best plan found for `problem` or for another allocation that `scope` allows.
///
/// A problem with absent stages keeps its allocation.
///
/// # Errors
/// As [`crate::search::plan`].
pub fn search_allocation(problem: &Problem, scope: AllocationScope, options: Options, budget: &Budget) -> Result<Plan> {
    let asked = asked_of(problem, options.strategy)?;
    if !asked.absent_stages().is_empty() {
        return plan_allocated(problem, options, budget);
    }
    // Where nothing is averaged, a node costs nothing in any stage.
    let unused = scope.unused && !asked.cluster().gradient_bytes().is_empty();
    let scope = AllocationScope { unused, ..scope };
    let is_joint = options.strategy.is_joint() && asked.constraints().tc2;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    let plan = pool.install(|| {
        if full_routed::has_straight(&asked, scope, options) {
            full_routed::plan(&asked, scope, options, budget)
        } else if is_joint {
            JointSearch { problem, asked: &asked, scope, options, budget }.plan()
        } else {
            local_search::plan(&asked, scope, options, budget)
        }
    })?;
    Ok(if scope.unused { with_left_out(plan) } else { plan })
}

/// The plan that says what its absent nodes would cost.
fn with_left_out(mut plan: Plan) -> Plan {
    let left_out = unused_nodes::explained(&plan);
    if let Some(report) = &mut plan.solver.allocation {
        report.left_out = left_out;
    }
    plan
}
