//! Plans of random problems, with little work.
#![allow(dead_code, reason = "each test uses a part of it")]

use proptest::test_runner::TestCaseError;
use skippipe_core::budget::Budget;
use skippipe_core::plan::Plan;
use skippipe_core::problem::Problem;
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::rules::Strategy;
use skippipe_core::simulate::MicrobatchRoute;

/// A plan by the portfolio; a problem for which none is found is no case.
pub fn planned(problem: &Problem, work: u64) -> Result<Plan, TestCaseError> {
    let request = PlanRequest::given(problem.clone(), Options::new(Strategy::Skippipe, 3));
    skippipe_core::plan(&request, &Budget::new(None, Some(work)))
        .map_err(|error| TestCaseError::reject(error.to_string()))
}

/// The microbatches of a plan as the simulator takes them.
pub fn microbatch_routes(plan: &Plan) -> Vec<MicrobatchRoute> {
    let microbatch = |b: &skippipe_core::plan::Microbatch| MicrobatchRoute {
        id: b.id,
        source: b.source,
        route: b.route,
        wave: b.wave,
        class: 0,
        nodes: b.nodes.iter().map(|node| *node as u32).collect(),
    };
    plan.microbatches.iter().map(microbatch).collect()
}
