//! Nodes that only cost: no further one can go, and those that stay stand where they cost least; against brute force.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::unused_nodes::{explained, joined_at_best, with_stages, without_idle};
use crate::budget::Budget;
use crate::check::check;
use crate::cluster::{Cluster, ClusterParts, Links};
use crate::plan::{Plan, Task};
use crate::problem::Problem;
use crate::request::{Options, PlanRequest};
use crate::rules::{Constraints, Strategy};
use crate::simulate::{Dispatch, resimulate};
use crate::test_clusters::{matrix, node};
use crate::time::{Rounding, Time};

/// So many units of work make a plan of these few nodes.
const WORK: u64 = 2_000;
/// Relative error of seconds that are rounded to nanoseconds.
const ROUNDING: f64 = 1e-6;

/// A plan for two or three stages of up to four nodes, fewer microbatches than most stages have nodes, and gradients
/// that take nothing, or about as long as a task.
fn plan(rng: &mut Pcg64) -> Plan {
    let sizes: Vec<usize> = (0..rng.random_range(2..4)).map(|_| rng.random_range(1..5)).collect();
    let count = sizes.iter().sum();
    let nodes = (0..count).map(|i| node(i, [rng.random_range(0.1..1.0), 0.5, 0.1], 2)).collect();
    let latency_s = matrix(count, |i, j| if i == j { 0.0 } else { rng.random_range(0.0..0.2) });
    let bandwidth = matrix(count, |_, _| rng.random_range(1.0..10.0));
    let parts = ClusterParts {
        activation_bytes: 0.1,
        gradient_bytes: sizes.iter().map(|_| [0.0, 0.5, 5.0][rng.random_range(0..3)]).collect(),
        ..ClusterParts::new(nodes, Links::Rated { latency_s, bandwidth, overhead_s: 0.0 })
    };
    let mut members: Vec<usize> = (0..count).collect();
    members.shuffle(rng);
    let stages: Vec<Vec<usize>> = sizes.iter().map(|size| members.drain(..*size).collect()).collect();
    let mut microbatches = vec![0; sizes[0]];
    microbatches[rng.random_range(0..sizes[0])] = rng.random_range(1..3);
    let cluster = Cluster::new(parts, "").unwrap();
    let problem = Problem::new(cluster, stages, vec![], microbatches, 0.0, Constraints::default()).unwrap();
    let options = Options::new(Strategy::ALL[rng.random_range(0..5)], 1);
    crate::plan(&PlanRequest::given(problem, options), &Budget::new(None, Some(WORK))).unwrap()
}

/// Whether a node runs nothing.
fn is_idle(plan: &Plan, node: usize) -> bool {
    plan.tasks.iter().all(|task| task.node != node)
}

/// The iteration with other nodes in the stages, routes and order being the same.
fn iteration_with(plan: &Plan, stages: Vec<Vec<usize>>) -> f64 {
    resimulate(&with_stages(plan, stages), Dispatch::Planned).unwrap().predicted.iteration_s
}

/// The stage without any of its idle nodes, or any two, or more, if it keeps another: every such choice, and itself.
fn with_fewer(plan: &Plan, stage: usize) -> Vec<Vec<usize>> {
    let grow = |choices: Vec<Vec<usize>>, node: &usize| {
        let with = choices.iter().map(|kept| [kept.as_slice(), &[*node]].concat()).collect::<Vec<_>>();
        if is_idle(plan, *node) { [choices, with].concat() } else { with }
    };
    let all = plan.stages[stage].iter().fold(vec![Vec::new()], grow);
    all.into_iter().filter(|kept| !kept.is_empty()).collect()
}

fn in_order(tasks: &[Task]) -> Vec<(usize, usize)> {
    tasks.iter().map(|task| (task.node, task.microbatch)).collect()
}

#[test]
fn nodes_that_run_nothing_go_where_gradients_are_averaged_sooner() {
    let mut rng = Pcg64::seed_from_u64(11);
    let (mut shorter, mut kept, mut several) = (0, 0, 0);
    for case in 0..600 {
        let plan = plan(&mut rng);
        let made = without_idle(plan.clone(), Time::MIN, &Budget::new(None, None)).unwrap();
        assert_eq!(check(&made), Vec::<String>::new(), "{case}");
        assert_eq!((&made.stages[0], &made.microbatches), (&plan.stages[0], &plan.microbatches), "{case}");
        assert_eq!(in_order(&made.tasks), in_order(&plan.tasks), "{case}");
        let gone: Vec<usize> = plan.stages.concat().into_iter().filter(|n| made.absent_nodes.contains(n)).collect();
        assert!(gone.iter().all(|node| is_idle(&plan, *node)), "{case}: {gone:?}");
        assert!(made.predicted.iteration_s <= plan.predicted.iteration_s * (1.0 + ROUNDING), "{case}");
        assert!(made.predicted.lower_bound_s <= made.predicted.iteration_s, "{case}");
        assert_eq!(made.predicted.iteration_s, iteration_with(&plan, made.stages.clone()), "{case}");
        // No all-reduce ends sooner without other nodes, however many go.
        for stage in 1..made.stages.len() {
            let own = made.cluster.allreduce_s(stage, &made.stages[stage]);
            for fewer in with_fewer(&plan, stage) {
                assert!(plan.cluster.allreduce_s(stage, &fewer) >= own, "{case}: {fewer:?}");
                several += usize::from(fewer.len() + 1 < plan.stages[stage].len());
            }
            kept += made.stages[stage].iter().filter(|node| is_idle(&made, **node)).count();
        }
        shorter += usize::from(made.predicted.iteration_s < plan.predicted.iteration_s * (1.0 - ROUNDING));
    }
    assert!(shorter > 20 && kept > 3 && several > 100, "{shorter}, {kept} and {several}: all happen");
}

#[test]
fn a_bound_over_all_allocations_is_kept() {
    let mut rng = Pcg64::seed_from_u64(13);
    for case in 0..40 {
        let plan = plan(&mut rng);
        let known = Rounding::Down.nanoseconds(plan.predicted.lower_bound_s / 2.0);
        let made = without_idle(plan.clone(), known, &Budget::new(None, None)).unwrap();
        if made.stages == plan.stages {
            assert_eq!(made, plan, "{case}");
        } else if !plan.strategy.is_bound_by_routes() {
            let least = (plan.predicted.lower_bound_s / 2.0).min(made.predicted.iteration_s);
            assert!(made.predicted.lower_bound_s >= least * (1.0 - ROUNDING), "{case}");
        }
    }
}

/// Every order of a ring.
fn orders(members: &[usize]) -> Vec<Vec<usize>> {
    if members.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let others = [&members[..at], &members[at + 1..]].concat();
        orders(&others).into_iter().map(move |rest| [vec![members[at]], rest].concat())
    };
    (0..members.len()).flat_map(first).collect()
}

#[test]
fn what_a_node_would_cost_is_the_least_of_all_its_places() {
    let mut rng = Pcg64::seed_from_u64(17);
    let mut said = 0;
    for case in 0..80 {
        let plan = without_idle(plan(&mut rng), Time::MIN, &Budget::new(None, None)).unwrap();
        // A ring of at most three nodes has no order that joining one of two at the best place does not reach.
        if plan.stages[1..].iter().any(|members| members.len() > 2) {
            continue;
        }
        let explained = explained(&plan);
        assert_eq!(explained.iter().map(|left_out| left_out.node).collect::<Vec<_>>(), plan.absent_nodes, "{case}");
        for left_out in explained {
            let everywhere = (1..plan.stages.len()).flat_map(|stage| {
                let joined = [plan.stages[stage].clone(), vec![left_out.node]].concat();
                orders(&joined).into_iter().map(move |ring| (stage, ring))
            });
            let iteration = |(stage, ring): (usize, Vec<usize>)| {
                let mut stages = plan.stages.clone();
                stages[stage] = ring;
                iteration_with(&plan, stages)
            };
            let least = everywhere.map(iteration).fold(f64::INFINITY, f64::min);
            assert!((left_out.iteration_s - least).abs() <= ROUNDING * least, "{case}: {left_out:?}, {least}");
            let own = &plan.stages[left_out.stage];
            assert_eq!(left_out.allreduce_without_s, plan.predicted.allreduce_s[left_out.stage], "{case}");
            let best = joined_at_best(&plan.cluster, left_out.stage, own, left_out.node);
            let with_s = plan.cluster.allreduce_s(left_out.stage, &best);
            assert!((left_out.allreduce_s - with_s).abs() <= 1e-8, "{case}");
            said += 1;
        }
    }
    assert!(said > 20, "{said}");
}
