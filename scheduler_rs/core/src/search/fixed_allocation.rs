//! The plan of one strategy for one allocation.

use super::assembly::assemble;
use super::candidate::Start;
use super::feasibility::prove_possible;
use super::methods::constructed::{solve_full, solve_random};
use super::portfolio;
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::problem::{Instance, Problem};
use crate::request::Options;
use crate::route::route_tasks;
use crate::rules::{Constraints, MemoryRule, Strategy};
use crate::time::Rounding;

/// The best plan found for the allocation of `problem`.
pub fn plan_allocated(problem: &Problem, options: Options, budget: &Budget) -> Result<Plan> {
    plan_from(problem, options, budget, None)
}

/// The same, from a plan that is known.
pub fn plan_from(problem: &Problem, options: Options, budget: &Budget, start: Option<&Start>) -> Result<Plan> {
    let problem = asked_of(problem, options.strategy)?;
    let instance = Instance::new(&problem, Rounding::Up);
    let tasks = route_tasks(&instance);
    let sets = prove_possible(&instance, &tasks)?;
    let sets = sets.as_deref();
    let below = Instance::new(&problem, Rounding::Down).without_contention();
    let solution = match options.strategy {
        Strategy::Full => solve_full(&problem, &instance, options, budget),
        Strategy::RandomSkip => solve_random(&instance, &below, &tasks, sets, options, budget),
        Strategy::FullRouted | Strategy::SkippipeNoTc2 | Strategy::Skippipe => {
            portfolio::solve(&instance, &below, &tasks, sets, options, budget, start)
        }
    }?;
    assemble(&problem, &instance, options, budget, solution)
}

/// The problem as the strategy understands it.
pub fn asked_of(problem: &Problem, strategy: Strategy) -> Result<Problem> {
    let rules = problem.constraints().clone();
    // All stages are visited by all routes, whatever a profile or classes say.
    let full = Constraints { profile: None, classes: None, ..rules.clone() };
    match strategy {
        Strategy::Full => problem.with(0.0, Constraints { tc1: MemoryRule::Held, waves: 1, ..full }),
        Strategy::FullRouted => problem.with(0.0, full),
        Strategy::SkippipeNoTc2 => problem.with(problem.skip_ratio(), Constraints { tc2: false, ..rules }),
        Strategy::RandomSkip | Strategy::Skippipe => Ok(problem.clone()),
    }
}

/// That there is no plan for the first allocation says nothing of the others.
pub fn plan_of_first(problem: &Problem, options: Options, budget: &Budget) -> Result<Plan> {
    plan_allocated(problem, options, budget).map_err(|error| match error {
        Error::Impossible { rule, reason } => Error::NotFound(format!(
            "no allocation was found that has a plan; for the first one {rule} cannot hold: {reason}"
        )),
        other => other,
    })
}
