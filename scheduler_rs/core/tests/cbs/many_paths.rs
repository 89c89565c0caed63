//! More paths than can be enumerated.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::route::route_tasks;
use skippipe_core::rules::Constraints;
use skippipe_core::search::methods::cbs::Termination;
use skippipe_core::time::{NEVER, Rounding};

use super::asked::{Asked, lookahead_of};
use super::clusters::{equal_nodes, matrix};
use super::routes::demand;

#[test]
fn too_many_paths_are_reduced_by_a_lower_limit() {
    let mut rng = Pcg64::seed_from_u64(3);
    let (stage_count, replicas) = (7, 9);
    let n = 1 + (stage_count - 1) * replicas;
    let stages: Vec<Vec<usize>> = std::iter::once(vec![0])
        .chain((0..stage_count - 1).map(|s| (1 + s * replicas..1 + (s + 1) * replicas).collect()))
        .collect();
    let transfer_s = matrix(n, |_, _| rng.random_range(1.0..9.0));
    let cluster = equal_nodes([0.1, 0.2, 0.1], 1, transfer_s);
    let rules = Constraints { max_swaps: 0, ..Constraints::default() };
    let problem = Problem::new(cluster, stages, vec![], vec![1], 0.0, rules).unwrap();
    let instance = Instance::new(&problem, Rounding::Up);
    let tasks = route_tasks(&instance);
    let demand = demand(&instance, &tasks, 0).unwrap();
    let lookahead = lookahead_of(&instance, &demand);
    let asked = Asked { instance: &instance, tasks: &tasks, demand: &demand, lookahead: &lookahead };
    let least = lookahead.round_trip(&instance, 0, stage_count);
    let answer = asked.solve(NEVER, 1.0, u64::MAX);
    assert_eq!((answer.termination, answer.bound), (Termination::Exhausted, least));
    assert_eq!(answer.best.map(|best| best.value), Some(least));
}
