//! Allocation and complete schedules at once, for small clusters: chains of schedule annealing side by side, all of them
//! as hot as each other. Half of them go on after each part of the search, each for twice as long.
//!
//! Where routes are short of time to suit an allocation, one looks good or bad by chance; here the allocation changes
//! while the schedule cools down, so that it is settled when it makes more of a difference than the rest of the schedule.

use rayon::prelude::*;

use crate::bound::is_tight;
use crate::budget::Budget;
use crate::error::Result;
use crate::problem::Problem;
use crate::request::Options;
use crate::search::context::stream_of;
use crate::search::effort;
use crate::search::instance_view::InstanceView;
use crate::search::methods::annealing::AllocationState;
use crate::search::methods::sampling::random_paths;
use crate::search::methods::schedule_annealing::{Schedule, ScheduleAnnealing};
use crate::time::{NEVER, Time};

/// Chains that begin, always as many, so that threads change nothing but the time.
const CHAINS: u64 = 8;
/// Parts of the search, each with half as many chains as the one before.
const PARTS: u64 = 3;
/// Without a limit of time or work, rounds of the search.
const MOST_ROUNDS: u64 = 2_000;
/// Streams of random numbers that no other search uses.
const STREAM: u64 = 1 << 32;

/// The best schedule, its allocation, and the work that it took.
pub struct Annealed {
    pub problem: Problem,
    pub schedule: Schedule,
    pub work: u64,
}

/// The best that chains find from `first` on until `share` of the time is gone or `most` steps are done; none takes less
/// than `bound`.
pub fn search(
    first: &AllocationState,
    options: Options,
    bound: Time,
    budget: &Budget,
    share: f64,
    most: u64,
) -> Option<Annealed> {
    let mut chains: Vec<Box<ScheduleAnnealing>> =
        (0..CHAINS).filter_map(|number| begun(first, options, number)).collect();
    let begin = budget.gone();
    let (mut work, mut rounds) = (0, 0);
    let mut best: Option<Schedule> = None;
    while !chains.is_empty() {
        let gone = [
            work as f64 / most.max(1) as f64,
            (budget.gone() - begin) / (share - begin).max(f64::MIN_POSITIVE),
            rounds as f64 / MOST_ROUNDS as f64,
        ];
        let gone = gone.into_iter().fold(0.0, f64::max);
        if gone >= 1.0 || budget.is_over() || best.as_ref().is_some_and(|best| is_tight(best.key.0, bound)) {
            break;
        }
        let part = (gone * PARTS as f64) as u32;
        chains.sort_by_key(|chain| chain.key());
        chains.truncate((CHAINS as usize) >> part);
        let before: u64 = chains.iter().map(|chain| chain.work()).sum();
        let round = effort::round_work(budget);
        chains.par_iter_mut().for_each(|chain| chain.cool(gone, round, budget));
        let done = chains.iter().map(|chain| chain.work()).sum::<u64>() - before;
        budget.add_work(done);
        (work, rounds) = (work + done, rounds + 1);
        let found = chains.iter().filter_map(|chain| chain.best()).min_by_key(|schedule| schedule.key);
        best = best.into_iter().chain(found.cloned()).min_by_key(|schedule| schedule.key);
    }
    let (problem, schedule) = settled(best.filter(|best| best.key.0 < NEVER)?).ok()?;
    Some(Annealed { problem, schedule, work })
}

/// A chain that starts from another allocation than all others; none where that has no routes.
fn begun(first: &AllocationState, options: Options, number: u64) -> Option<Box<ScheduleAnnealing>> {
    let mut rng = stream_of(options.seed, STREAM + 2 * number);
    let mut allocation = first.clone();
    for _ in 0..2 * allocation.view().instance.node_count() {
        allocation.exchange_any(&mut rng);
    }
    let paths = random_paths(allocation.view(), &mut rng)?;
    // A node soon leaves a stage and hardly ever comes back: where none is to be left out, the other half finds more.
    let joins = number % 2 == 1;
    let rng = stream_of(options.seed, STREAM + 2 * number + 1);
    Some(Box::new(ScheduleAnnealing::free(&allocation, paths, joins, rng)))
}

/// The problem of a schedule's allocation, and the schedule by its nodes. Sources and their microbatches come in the same
/// order, so that tasks keep their numbers.
fn settled(found: Schedule) -> Result<(Problem, Schedule)> {
    let Schedule { paths, order, key, allocation: Some(allocation) } = found else {
        return Err(crate::error::Error::NotFound("a schedule has no allocation".to_owned()));
    };
    let InstanceView { instance, tasks } = allocation.view();
    let placement = allocation.placement();
    let node_at = |position: &u32| placement.node_at(*position as usize) as u32;
    let paths = paths.iter().map(|path| path.iter().map(node_at).collect()).collect();
    let mut order_of_processors = vec![Vec::new(); order.len()];
    for (processor, tasks) in order.into_iter().enumerate() {
        // Where processors are shared, their numbers are those of the cluster already.
        let own = if instance.shares_processors() { processor } else { placement.node_at(processor) };
        order_of_processors[own] = tasks;
    }
    let problem = placement.problem(instance, tasks)?;
    Ok((problem, Schedule { paths, order: order_of_processors, key, allocation: None }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::allocate::joint::AllocationScope;
    use crate::cluster::{Cluster, ClusterParts, Links};
    use crate::contention::Contention;
    use crate::problem::Instance;
    use crate::route::route_tasks;
    use crate::rules::{Constraints, MemoryRule, Strategy};
    use crate::search::methods::routes::{Routes, microbatches_of_paths};
    use crate::simulate::Simulator;
    use crate::test_clusters::node;
    use crate::time::Rounding;

    const NODES: usize = 9;

    /// Nine nodes in three stages, random times, links, gradients and rules.
    fn problem(rng: &mut Pcg64) -> Problem {
        let mut between = |n: usize| (0..n).map(|_| rng.random_range(0.1..1.0)).collect::<Vec<f64>>();
        let (forward, backward) = (between(NODES), between(NODES));
        let mut square = || (0..NODES).map(|_| between(NODES)).collect();
        let (latency_s, bandwidth) = (square(), square());
        let nodes = (0..NODES).map(|i| node(i, [forward[i], backward[i], 0.1], 2 + i as u32 % 3)).collect();
        let parts = ClusterParts {
            activation_bytes: 0.1,
            gradient_bytes: vec![1.0; 3],
            ..ClusterParts::new(nodes, Links::Rated { latency_s, bandwidth, overhead_s: 0.0 })
        };
        let rules = Constraints {
            cc1: rng.random_bool(0.8),
            tc1: [MemoryRule::Held, MemoryRule::Off][rng.random_range(0..2)],
            waves: rng.random_range(1..3),
            ..Constraints::default()
        };
        let stages = vec![vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8]];
        let ratio = [0.0, 0.25][rng.random_range(0..2)];
        Problem::new(Cluster::new(parts, "").unwrap(), stages, vec![], vec![3; 3], ratio, rules).unwrap()
    }

    fn searched(problem: &Problem, scope: AllocationScope, threads: usize) -> Annealed {
        let first = AllocationState::of(problem, scope).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let budget = Budget::new(None, Some(100_000));
        pool.install(|| search(&first, Options::new(Strategy::Skippipe, 1), 0, &budget, 0.9, 40_000)).unwrap()
    }

    #[test]
    fn what_is_found_can_be_executed_on_its_allocation() {
        let mut rng = Pcg64::seed_from_u64(5);
        let mut left_out = 0;
        for number in 0..24 {
            let mut problem = problem(&mut rng);
            if number % 4 == 3 {
                let processors: Vec<Option<u32>> = (0..NODES).map(|_| Some(rng.random_range(0..6))).collect();
                let cluster = problem.cluster().with_processors(&processors).unwrap();
                let (stages, rules) = (problem.stages().to_vec(), problem.constraints().clone());
                problem = Problem::new(cluster, stages, vec![], vec![3; 3], problem.skip_ratio(), rules).unwrap();
            }
            let contention = Contention::ALL[number % 3].1;
            problem = problem.on_faster(problem.cluster().clone().with_contention(contention));
            let scope =
                AllocationScope { unused: number % 2 == 0, sources: number % 3 > 0, ..AllocationScope::default() };
            let found = searched(&problem, scope, 1);
            let serving: Vec<usize> = found.problem.stages().concat();
            assert_eq!(serving.iter().collect::<BTreeSet<_>>().len(), serving.len());
            assert!(scope.unused || serving.len() == NODES);
            assert!(scope.sources || found.problem.stages()[0] == problem.stages()[0]);
            assert_eq!(found.problem.stages()[0].len(), 3);
            left_out += NODES - serving.len();

            let instance = Instance::new(&found.problem, Rounding::Up);
            let tasks = route_tasks(&instance);
            let view = InstanceView { instance: &instance, tasks: &tasks };
            let mut simulator = Simulator::new(&instance);
            simulator.load(&microbatches_of_paths(&tasks, &found.schedule.paths));
            let outcome = simulator.run_order(&found.schedule.order).unwrap();
            assert_eq!((outcome.iteration, outcome.finish_sum), found.schedule.key);
            // Routes that keep the rules can replace themselves.
            let mut routes = Routes::new(view, found.schedule.paths.clone());
            let same = found.schedule.paths.iter().enumerate().map(|(route, path)| (route as u32, path.clone()));
            assert!(routes.apply(view, same.collect()).is_some());
        }
        assert!(left_out > 0);
    }

    #[test]
    fn threads_change_nothing() {
        let problem = problem(&mut Pcg64::seed_from_u64(6));
        let scope = AllocationScope { unused: true, ..AllocationScope::default() };
        let [one, three] = [1, 3].map(|threads| searched(&problem, scope, threads));
        assert_eq!(one.problem.stages(), three.problem.stages());
        assert_eq!((one.schedule.key, one.schedule.order), (three.schedule.key, three.schedule.order));
        assert_eq!(one.work, three.work);
    }
}
