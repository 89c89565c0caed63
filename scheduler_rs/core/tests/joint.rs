//! Plans that choose their allocation themselves: they keep the rules and what was not to be changed, whatever else
//! changes.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/problems.rs"]
mod problems;
#[path = "common/scope.rs"]
mod scope;

use clusters::{equal_nodes, matrix};
use problems::problems;
use proptest::prelude::*;
use scope::{check_kept, plan, plan_if_any};
use skippipe_core::allocate::joint::{AllocationScope, Placement, lower_bound};
use skippipe_core::budget::Budget;
use skippipe_core::cluster::{Cluster, ClusterParts};
use skippipe_core::error::Error;
use skippipe_core::problem::{Instance, NO_STAGE, Problem};
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::route::route_tasks;
use skippipe_core::rules::{Constraints, Strategy as PlanStrategy};
use skippipe_core::time::Rounding;

prop_compose! {
    fn scopes()(
        unused in any::<bool>(),
        layers in prop::option::of(0_usize..3),
        sources in prop::bool::weighted(0.8),
        limit in prop::option::weighted(0.3, 0.5_f64..4.0),
    ) -> (AllocationScope, Option<usize>) {
        (AllocationScope { layers: 0, unused, sources, max_replica_transfer_s: limit }, layers)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_are_kept_and_what_must_stay_stays(problem in problems(), (scope, layers) in scopes()) {
        let stages = problem.stages().len();
        let scope = AllocationScope { layers: layers.map_or(0, |more| stages + more * stages), ..scope };
        let Some(plan) = plan_if_any(&problem, scope, PlanStrategy::Skippipe, 60_000)? else { return Ok(()) };
        check_kept(&problem, scope, &plan)?;
        let bound = lower_bound(&problem, scope) as f64 / 1e9;
        prop_assert!(bound <= plan.predicted.iteration_s + 1e-6, "{bound} > {}", plan.predicted.iteration_s);
    }

    #[test]
    fn no_scope_to_bound_is_below_the_bound_of_one_allocation(problem in problems()) {
        // Every allocation's own plan is one of those that the bound speaks of.
        let scope = AllocationScope::default();
        let options = Options::new(PlanStrategy::Skippipe, 1);
        let Ok(plan) = skippipe_core::plan(&PlanRequest::given(problem.clone(), options), &Budget::new(None, Some(100_000))) else { return Ok(()) };
        prop_assert!(lower_bound(&problem, scope) as f64 / 1e9 <= plan.predicted.iteration_s + 1e-6);
    }

    #[test]
    fn what_is_changed_step_by_step_is_what_its_problem_says(
        problem in problems(),
        more in prop::option::of(0_usize..3),
        draws in prop::collection::vec((0_u32..8, any::<usize>(), any::<usize>()), 1..30),
    ) {
        let layers = more.map_or(0, |more| problem.stages().len() * (2 + more));
        let scope = AllocationScope { layers, unused: true, ..AllocationScope::default() };
        let Ok(mut placement) = Placement::new(&problem, scope) else { return Ok(()) };
        let mut instance = placement.instance();
        for (kind, a, b) in draws {
            let (mut next, mut changed) = (placement.clone(), instance.clone());
            if change(&mut next, &mut changed, kind, a, b) {
                (placement, instance) = (next, changed);
            }
        }
        let rebuilt = placement.problem(&instance, &route_tasks(&instance)).unwrap();
        same_by_position(&placement, &instance, &Instance::new(&rebuilt, Rounding::Up))?;
        let sizes = |stages: &[Vec<usize>]| stages.iter().map(Vec::len).collect::<Vec<_>>();
        prop_assert_eq!(placement.layers().iter().sum::<usize>(), layers);
        prop_assert_eq!(rebuilt.microbatch_count(), problem.microbatch_count());
        prop_assert_eq!(sizes(rebuilt.stages())[0], sizes(problem.stages())[0]);
        prop_assert!(sizes(rebuilt.stages()).iter().zip(sizes(problem.stages())).all(|(own, most)| (1..=most).contains(own)));
    }

    #[test]
    fn threads_change_nothing(problem in problems(), (scope, _) in scopes()) {
        let scope = AllocationScope { max_replica_transfer_s: None, ..scope };
        match (plan(&problem, scope, PlanStrategy::Skippipe, 1, 150_000), plan(&problem, scope, PlanStrategy::Skippipe, 3, 150_000)) {
            (Ok(one), Ok(three)) => {
                prop_assert_eq!(one.stages, three.stages);
                prop_assert_eq!(one.tasks, three.tasks);
                prop_assert_eq!(&one.solver.allocation, &three.solver.allocation);
            }
            (Err(one), Err(three)) => prop_assert_eq!(one, three),
            _ => return Err(TestCaseError::fail("one found a plan, the other did not")),
        }
    }
}

/// Exchanges two nodes, shifts a layer, or has a node of a later stage leave it or join one; whether all nodes that serve
/// have memory then.
fn change(placement: &mut Placement, instance: &mut Instance, kind: u32, a: usize, b: usize) -> bool {
    let (nodes, stages) = (instance.node_count(), instance.stage_count());
    let (position, stage) = (a % nodes, 1 + b % (stages - 1));
    match kind {
        0..4 => placement.swap(instance, position, b % nodes),
        4..6 => return a % stages != b % stages && placement.shift_layer(instance, a % stages, b % stages),
        _ => match instance.stage_of[position] {
            0 => return false,
            NO_STAGE if placement.may_grow(instance, stage) => return placement.switch(instance, position, stage),
            NO_STAGE => return false,
            own if instance.members[own].len() < 2 => return false,
            _ => return placement.switch(instance, position, NO_STAGE),
        },
    }
    instance.memory.iter().all(|memory| *memory > 0)
}

/// An instance over positions is that over nodes, with the node that stands at each position.
fn same_by_position(placement: &Placement, own: &Instance, rebuilt: &Instance) -> Result<(), TestCaseError> {
    let node_at = |position: usize| placement.node_at(position);
    for position in 0..own.node_count() {
        let node = node_at(position);
        prop_assert_eq!(own.stage_of[position], rebuilt.stage_of[node]);
        prop_assert_eq!(own.forward(0, position), rebuilt.forward(0, node));
        prop_assert_eq!(own.backward(0, position), rebuilt.backward(0, node));
        prop_assert_eq!(own.loss(0, position), rebuilt.loss(0, node));
        prop_assert_eq!(own.memory[position], rebuilt.memory[node]);
        for other in 0..own.node_count() {
            prop_assert_eq!(own.transfer(position, other), rebuilt.transfer(node, node_at(other)));
            let share = |instance: &Instance, a, b| instance.processor(a) == instance.processor(b);
            prop_assert_eq!(share(own, position, other), share(rebuilt, node, node_at(other)));
        }
    }
    prop_assert_eq!(&own.allreduce, &rebuilt.allreduce);
    prop_assert_eq!(own.epilogue, rebuilt.epilogue);
    let members: Vec<Vec<usize>> = own.members.iter().map(|m| m.iter().copied().map(node_at).collect()).collect();
    prop_assert_eq!(&members, &rebuilt.members);
    let started: Vec<_> = own.sources.iter().map(|source| (node_at(source.node), source.microbatches)).collect();
    prop_assert_eq!(
        started,
        rebuilt.sources.iter().map(|source| (source.node, source.microbatches)).collect::<Vec<_>>()
    );
    Ok(())
}

/// Nodes with a memory for four microbatches, a second of work for each and these transfer times.
fn one_second_nodes(transfer_s: Vec<Vec<f64>>) -> Cluster {
    equal_nodes([0.5, 0.5, 0.0], 4, transfer_s)
}

fn times(count: usize, time: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
    matrix(count, |i, j| if i == j { 0.0 } else { time(i, j) })
}

fn planned(problem: &Problem) -> f64 {
    skippipe_core::plan(
        &PlanRequest::given(problem.clone(), Options::new(PlanStrategy::Skippipe, 1)),
        &Budget::new(None, Some(100_000)),
    )
    .unwrap()
    .predicted
    .iteration_s
}

#[test]
fn a_far_source_need_not_start_anything() {
    let cluster = one_second_nodes(times(4, |i, j| if i == 1 || j == 1 { 50.0 } else { 1.0 }));
    let of = |microbatches| {
        let stages = vec![vec![0, 1], vec![2], vec![3]];
        Problem::new(cluster.clone(), stages, vec![], microbatches, 0.0, Constraints::default()).unwrap()
    };
    let all_by_the_near_one = planned(&of(vec![2, 0]));
    for sources in [false, true] {
        let reassigned = AllocationScope { layers: 3, sources, ..AllocationScope::default() };
        let found = plan(&of(vec![1, 1]), reassigned, PlanStrategy::Skippipe, 1, 200_000).unwrap();
        assert!(found.predicted.iteration_s <= all_by_the_near_one + 1e-6, "{}", found.predicted.iteration_s);
        assert!(lower_bound(&of(vec![1, 1]), reassigned) as f64 / 1e9 <= all_by_the_near_one);
    }
}

#[test]
fn a_longer_route_may_be_quicker() {
    // Three nodes near each other, and four in a ring whose diagonals are slow.
    let is_near = |i: usize, j: usize| (i < 3 && j < 3) || (i >= 3 && j >= 3 && (i + j) % 2 == 1);
    let cluster = one_second_nodes(times(7, |i, j| if is_near(i, j) { 1.0 } else { 100.0 }));
    let stages = vec![vec![0, 3], vec![1, 4], vec![2, 5], vec![6]];
    let problem = Problem::new(cluster, stages, vec![], vec![1, 1], 1.0 / 8.0, Constraints::default()).unwrap();
    let scope = AllocationScope { sources: false, ..AllocationScope::default() };
    assert!(lower_bound(&problem, scope) as f64 / 1e9 <= planned(&problem));
}

#[test]
fn layers_are_shared_out_where_there_is_memory_for_them() {
    let mut parts = one_second_nodes(times(3, |_, _| 1.0)).into_parts();
    parts.nodes[0].memory = 1;
    let of = |parts: ClusterParts| {
        let cluster = Cluster::new(parts, "").unwrap();
        Problem::new(cluster, vec![vec![0], vec![1], vec![2]], vec![], vec![1], 0.0, Constraints::default()).unwrap()
    };
    let layers = |problem: &Problem, layers: usize| {
        Placement::new(problem, AllocationScope { layers, ..AllocationScope::default() })
            .map(|placement| placement.layers().to_vec())
    };
    assert_eq!(layers(&of(parts.clone()), 8).unwrap(), [2, 3, 3]);
    assert_eq!(layers(&of(parts.clone()), 7).unwrap(), [2, 3, 2]);
    parts.nodes[1].memory = 1;
    assert_eq!(layers(&of(parts.clone()), 8).unwrap(), [2, 2, 4]);
    parts.nodes[2].memory = 1;
    assert_eq!(layers(&of(parts.clone()), 6).unwrap(), [2, 2, 2]);
    assert!(matches!(layers(&of(parts), 7), Err(Error::Invalid { .. })));
}
