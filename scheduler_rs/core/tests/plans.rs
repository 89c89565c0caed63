//! Whole plans of random problems: every strategy keeps the rules, the same whatever the threads, and what is
//! written reads back.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/problems.rs"]
mod problems;

use problems::problems;
use proptest::prelude::*;
use skippipe_core::budget::Budget;
use skippipe_core::check::check;
use skippipe_core::error::Error;
use skippipe_core::plan::Plan;
use skippipe_core::problem::Problem;
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::rules::Strategy as PlanStrategy;
use skippipe_core::simulate::{Dispatch, resimulate};

fn plan(problem: &Problem, strategy: PlanStrategy, threads: usize) -> Result<Plan, Error> {
    skippipe_core::plan(
        &PlanRequest::given(problem.clone(), Options { threads, ..Options::new(strategy, 3) }),
        &Budget::new(None, Some(2000)),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_strategy_keeps_the_rules(problem in problems()) {
        for strategy in PlanStrategy::ALL {
            let plan = match plan(&problem, strategy, 1) {
                Ok(plan) => plan,
                Err(Error::Impossible { .. } | Error::NotFound(_) | Error::Deadlock(_)) => continue,
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            };
            prop_assert_eq!(check(&plan), Vec::<String>::new());
            prop_assert_eq!(&Plan::from_json(&plan.to_json()).unwrap(), &plan);
            let again = resimulate(&plan, Dispatch::Planned).unwrap();
            prop_assert_eq!(&again.tasks, &plan.tasks);
            // What a search says of its course only ever gets better, and ends with the plan.
            for two in plan.solver.events.windows(2) {
                prop_assert!(two[0].work <= two[1].work && two[0].elapsed_s <= two[1].elapsed_s);
                prop_assert!(two[0].lower_s <= two[1].lower_s);
                let (before, after) = (two[0].upper_s.unwrap_or(f64::INFINITY), two[1].upper_s.unwrap_or(f64::INFINITY));
                // Without TC2 plans are chosen by travel time.
                let is_better = after <= before * (1.0 + 1e-12) || strategy == PlanStrategy::SkippipeNoTc2;
                prop_assert!(is_better, "{}: {:?}", strategy.name(), two);
            }
            let last = plan.solver.events.last();
            prop_assert!(last.is_none_or(|last| last.upper_s == Some(plan.predicted.iteration_s)));
        }
    }

    #[test]
    fn threads_change_nothing(problem in problems()) {
        let one = plan(&problem, PlanStrategy::Skippipe, 1);
        let three = plan(&problem, PlanStrategy::Skippipe, 3);
        match (one, three) {
            (Ok(one), Ok(three)) => prop_assert_eq!(one.tasks, three.tasks),
            (Err(one), Err(three)) => prop_assert_eq!(one, three),
            _ => return Err(TestCaseError::fail("one found a plan, the other did not")),
        }
    }
}
