//! Allocations that are searched for a strategy by its own plans: rules are kept, what must stay stays, the first
//! allocation is never left for a worse one, and threads change nothing.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/problems.rs"]
mod problems;
#[path = "common/scope.rs"]
mod scope;

use problems::{cluster, problems};
use proptest::prelude::*;
use scope::{check_kept, plan, plan_if_any};
use skippipe_core::allocate::joint::{AllocationScope, lower_bound};
use skippipe_core::budget::Budget;
use skippipe_core::problem::Problem;
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::rules::{Constraints, Strategy as PlanStrategy};

const BASELINES: [PlanStrategy; 4] =
    [PlanStrategy::Full, PlanStrategy::FullRouted, PlanStrategy::RandomSkip, PlanStrategy::SkippipeNoTc2];

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_are_kept_and_what_must_stay_stays(
        problem in problems(),
        unused in any::<bool>(),
        more in prop::option::of(0_usize..3),
        sources in prop::bool::weighted(0.8),
        limit in prop::option::weighted(0.3, 0.5_f64..4.0),
        strategy in prop::sample::select(BASELINES.to_vec()),
    ) {
        let stages = problem.stages().len();
        let layers = more.map_or(0, |more| stages + more * stages);
        let scope = AllocationScope { layers, unused, sources, max_replica_transfer_s: limit };
        let Some(plan) = plan_if_any(&problem, scope, strategy, 20_000)? else { return Ok(()) };
        prop_assert_eq!(plan.strategy, strategy);
        check_kept(&problem, scope, &plan)?;
        let bound = lower_bound(&problem, AllocationScope { layers, ..scope }) as f64 / 1e9;
        if !strategy.is_full() {
            prop_assert!(bound <= plan.predicted.iteration_s + 1e-6, "{bound} > {}", plan.predicted.iteration_s);
        }
    }

    #[test]
    fn threads_change_nothing(problem in problems(), strategy in prop::sample::select(BASELINES.to_vec())) {
        let scope = AllocationScope::default();
        match (plan(&problem, scope, strategy, 1, 20_000), plan(&problem, scope, strategy, 3, 20_000)) {
            (Ok(one), Ok(three)) => {
                prop_assert_eq!(one.stages, three.stages);
                prop_assert_eq!(one.tasks, three.tasks);
                prop_assert_eq!(&one.solver.allocation, &three.solver.allocation);
                prop_assert_eq!(&one.solver.work, &three.solver.work);
            }
            (Err(one), Err(three)) => prop_assert_eq!(one, three),
            _ => return Err(TestCaseError::fail("one found a plan, the other did not")),
        }
    }
}

/// Twelve nodes in four stages, too many for every allocation to be looked at.
fn twelve(number: impl Fn(usize) -> f64) -> Problem {
    let numbers: Vec<f64> = (0..40).map(number).collect();
    let stages = vec![(0..4).collect(), vec![4, 5, 6], vec![7, 8, 9], vec![10, 11]];
    let rules = Constraints::default();
    Problem::new(cluster(12, 4, &numbers), stages, vec![], vec![3; 4], 0.25, rules).unwrap()
}

#[test]
fn what_was_found_is_at_least_as_good_as_the_first_allocation() {
    for seed in 0..2_usize {
        let problem = twelve(|i| ((i * 37 + seed * 11) % 23) as f64 / 23.0);
        for strategy in [PlanStrategy::Full, PlanStrategy::FullRouted, PlanStrategy::SkippipeNoTc2] {
            let free = plan(&problem, AllocationScope::default(), strategy, 1, 2_000_000).unwrap();
            let one = skippipe_core::plan(
                &PlanRequest::given(problem.clone(), Options::new(strategy, 3)),
                &Budget::new(None, Some(200_000)),
            )
            .unwrap();
            assert!(free.predicted.iteration_s <= one.predicted.iteration_s + 1e-9, "{seed}, {}", strategy.name());
        }
    }
}

#[test]
fn straight_pipelines_are_routes_too() {
    for seed in 0..4_usize {
        let problem = twelve(|i| ((i * 29 + seed * 7) % 19) as f64 / 19.0);
        let routed = plan(&problem, AllocationScope::default(), PlanStrategy::FullRouted, 1, 800_000).unwrap();
        // As many of them as they get of the work of `full-routed`.
        let straight = plan(&problem, AllocationScope::default(), PlanStrategy::Full, 1, 200_000).unwrap();
        assert!(routed.predicted.iteration_s <= straight.predicted.iteration_s, "{seed}");
    }
}

#[test]
fn slow_all_reduce_makes_replicas_neighbours() {
    // Two sites with three nodes each; between them gradients take far longer than messages.
    let mut parts = cluster(6, 3, &[0.5]).into_parts();
    parts.region_of = Some(vec![0, 0, 0, 1, 1, 1]);
    parts.links = skippipe_core::cluster::Links::Rated {
        latency_s: vec![vec![0.0, 0.01], vec![0.01, 0.0]],
        bandwidth: vec![vec![1e9, 1e7], vec![1e7, 1e9]],
        overhead_s: 0.0,
    };
    parts.activation_bytes = 1e5;
    parts.gradient_bytes = vec![1e9; 3];
    let apart = skippipe_core::cluster::Cluster::new(parts, "").unwrap();
    let stages = vec![vec![0, 3], vec![1, 4], vec![2, 5]];
    let problem = Problem::new(apart, stages, vec![], vec![2, 2], 1.0 / 3.0, Constraints::default()).unwrap();
    for strategy in BASELINES {
        let plan = plan(&problem, AllocationScope::default(), strategy, 1, 400_000).unwrap();
        let split =
            plan.stages.iter().filter(|members| members.iter().any(|n| *n < 3) && members.iter().any(|n| *n >= 3));
        // Of three nodes at each site one is left over, so one stage has to be split.
        assert_eq!(split.count(), 1, "{}: {:?}", strategy.name(), plan.stages);
    }
}
