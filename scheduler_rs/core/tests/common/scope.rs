//! Plans whose search may change the allocation: how they are made, and what they have to keep.

use proptest::prelude::*;
use skippipe_core::allocate::joint::{AllocationScope, Placement};
use skippipe_core::budget::Budget;
use skippipe_core::check::check;
use skippipe_core::error::Error;
use skippipe_core::plan::Plan;
use skippipe_core::problem::Problem;
use skippipe_core::request::{FirstAllocation, Options, PlanRequest};
use skippipe_core::rules::Strategy as PlanStrategy;

/// Plans with so many units of work.
pub fn plan(
    problem: &Problem,
    scope: AllocationScope,
    strategy: PlanStrategy,
    threads: usize,
    work: u64,
) -> Result<Plan, Error> {
    let options = Options { threads, ..Options::new(strategy, 3) };
    let first = FirstAllocation::Given(problem.clone());
    skippipe_core::plan(&PlanRequest { first, scope: Some(scope), options }, &Budget::new(None, Some(work)))
}

/// Plans on one thread; None where there is nothing to plan, or no plan was found.
pub fn plan_if_any(
    problem: &Problem,
    scope: AllocationScope,
    strategy: PlanStrategy,
    work: u64,
) -> Result<Option<Plan>, TestCaseError> {
    match plan(problem, scope, strategy, 1, work) {
        Ok(plan) => Ok(Some(plan)),
        Err(Error::Invalid { .. }) => {
            // The first allocation is refused for what it is, or a node has no memory for its layers.
            prop_assert!(Placement::new(problem, scope).is_err());
            Ok(None)
        }
        Err(Error::Impossible { .. } | Error::NotFound(_) | Error::Deadlock(_)) => Ok(None),
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}

/// The plan keeps its rules, and of the problem what was not to be changed.
pub fn check_kept(problem: &Problem, scope: AllocationScope, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert_eq!(check(plan), Vec::<String>::new());
    prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), plan);
    let sizes = |stages: &[Vec<usize>]| stages.iter().map(Vec::len).collect::<Vec<_>>();
    let (own, given) = (sizes(&plan.stages), sizes(problem.stages()));
    if scope.unused {
        prop_assert_eq!(own[0], given[0]);
        prop_assert!(own.iter().zip(&given).all(|(own, given)| *own >= 1 && own <= given));
    } else {
        prop_assert_eq!(own, given);
    }
    let serving = plan.stages.iter().map(Vec::len).sum::<usize>();
    prop_assert_eq!(serving + plan.absent_nodes.len(), problem.cluster().nodes().len());
    prop_assert!(scope.unused || plan.absent_nodes == problem.absent_nodes());
    if !scope.sources {
        prop_assert_eq!(sorted(plan.stages[0].clone()), sorted(problem.stages()[0].clone()));
    }
    prop_assert_eq!(plan.microbatches.len(), problem.microbatch_count());
    if scope.layers == 0 {
        prop_assert_eq!(&plan.cluster, problem.cluster());
    } else {
        prop_assert_eq!(plan.layers.iter().sum::<usize>(), scope.layers);
        let equal = scope.layers as f64 / problem.stages().len() as f64;
        for (stage, members) in plan.stages.iter().enumerate() {
            let part = plan.layers[stage] as f64 / equal;
            for node in members {
                let (own, given) = (&plan.cluster.nodes()[*node], &problem.cluster().nodes()[*node]);
                prop_assert!((own.forward_s - given.forward_s * part).abs() < 1e-9);
                prop_assert!((own.backward_s - given.backward_s * part).abs() < 1e-9);
                prop_assert!(f64::from(own.memory) * part <= f64::from(given.memory) + 1e-6);
                prop_assert!(f64::from(own.memory + 1) * part > f64::from(given.memory) - 1e-6);
            }
        }
    }
    if let Some(limit) = scope.max_replica_transfer_s {
        let bytes = plan.cluster.activation_bytes();
        for members in &plan.stages {
            for (i, j) in members.iter().flat_map(|i| members.iter().map(move |j| (*i, *j))) {
                prop_assert!(plan.cluster.transfer_s(i, j, bytes) <= limit);
            }
        }
    }
    Ok(())
}

fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers
}
