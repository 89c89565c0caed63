//! Classic job-shop instances with proved optima, as forced routes.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::job_shop::{Encoded, Shop, UNIT, shop, shops};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_pcg::Pcg64;
use skippipe_core::budget::Budget;
use skippipe_core::plan::Kind;
use skippipe_core::route::RouteTask;
use skippipe_core::search::methods::cbs::{Termination, solve};
use skippipe_core::search::methods::tabu::improve;
use skippipe_core::simulate::{MicrobatchRoute, Simulator, TaskId};
use skippipe_core::time::Time;

#[test]
fn shops_are_whole() {
    let known =
        [("ft06", 55), ("ft10", 930), ("la01", 666), ("la02", 655), ("la03", 597), ("la04", 590), ("la05", 593)];
    let shops = shops();
    assert_eq!(shops.iter().map(|s| (s.name.as_str(), s.optimum)).collect::<Vec<_>>(), known);
    for shop in shops {
        for job in &shop.jobs {
            let mut machines: Vec<usize> = job.iter().map(|task| task.0).collect();
            machines.sort_unstable();
            assert_eq!(machines, (0..shop.machines).collect::<Vec<_>>(), "{}", shop.name);
        }
    }
}

/// Appends the tasks of the jobs in the order of `turns` to the queues of their machines: the times at which the jobs
/// end, by a plain loop, and queues of (job, index in the job).
fn queues(shop: &Shop, turns: &[usize]) -> (Vec<Time>, Vec<Vec<(usize, usize)>>) {
    let mut next = vec![0; shop.jobs.len()];
    let mut job_free = vec![0; shop.jobs.len()];
    let mut machine_free = vec![0; shop.machines];
    let mut queues = vec![Vec::new(); shop.machines];
    for turn in turns {
        let open: Vec<usize> = (0..shop.jobs.len()).filter(|job| next[*job] < shop.machines).collect();
        let job = open[turn % open.len()];
        let (machine, time) = shop.jobs[job][next[job]];
        let end = job_free[job].max(machine_free[machine]) + time;
        (job_free[job], machine_free[machine]) = (end, end);
        queues[machine].push((job, next[job]));
        next[job] += 1;
    }
    (job_free, queues)
}

/// Has conflict-based search look for the optimum; the makespan found, the bound, and whether it is proved.
fn search(shop: &Shop, work_limit: u64) -> (Option<Time>, Time, bool) {
    let encoded = shop.encode();
    let answer = solve(&encoded.subproblem(work_limit), &encoded.lookahead(), &Budget::new(None, None));
    let found = answer.best.map(|found| {
        let mut simulator = Simulator::new(&encoded.instance);
        simulator.load(&found.microbatches);
        let outcome = simulator.run_order(&found.order).unwrap();
        assert_eq!(outcome.iteration, found.value);
        encoded.makespan(found.value)
    });
    (found, (answer.bound - encoded.constant).div_euclid(UNIT), answer.termination == Termination::Exhausted)
}

#[test]
fn optima_are_proved() {
    for name in ["ft06", "la01", "la02", "la03", "la04", "la05"] {
        let shop = shop(name);
        assert_eq!(search(&shop, 300_000), (Some(shop.optimum), shop.optimum, true), "{name}");
    }
}

#[test]
fn nothing_said_early_contradicts_an_optimum() {
    for shop in shops() {
        let (found, bound, _) = search(&shop, 2_000);
        assert!(found.is_none_or(|makespan| makespan >= shop.optimum), "{}: {found:?}", shop.name);
        assert!(bound <= shop.optimum, "{}: {bound}", shop.name);
    }
}

/// The jobs as the simulator takes them.
fn microbatches(shop: &Encoded) -> Vec<MicrobatchRoute> {
    let microbatch = |(id, task): (usize, &RouteTask)| MicrobatchRoute {
        id,
        source: task.source,
        route: id,
        wave: 0,
        class: task.class,
        nodes: shop.instance.classes[task.class].forced.clone().unwrap(),
    };
    shop.tasks.iter().enumerate().map(microbatch).collect()
}

/// The least makespan that the search for the best order comes to from the dispatch rule's.
fn best_order(shop: &Shop, seed: u64, work_limit: u64) -> Time {
    let encoded = shop.encode();
    let microbatches = microbatches(&encoded);
    let mut simulator = Simulator::new(&encoded.instance);
    simulator.load(&microbatches);
    simulator.run_dispatch().unwrap();
    let order = simulator.dispatched_order();
    let limit = encoded.constant + shop.optimum * UNIT;
    let mut rng = Pcg64::seed_from_u64(seed);
    let budget = Budget::new(None, None);
    let found = improve(&encoded.instance, &microbatches, &order, &mut rng, work_limit, limit, &budget).unwrap();
    assert_eq!(simulator.run_order(&found.order).unwrap(), found.outcome);
    encoded.makespan(found.outcome.iteration)
}

#[test]
fn optima_are_met_by_order_alone() {
    for name in ["ft06", "la01", "la02", "la03", "la04", "la05"] {
        let shop = shop(name);
        assert_eq!(best_order(&shop, 1, 1_000_000), shop.optimum, "{name}");
    }
}

/// Long unsolved: two starts of sixteen get there within this work, half of them within 50 million, the others to
/// 934 or 935.
#[test]
fn the_optimum_of_ft10_is_met_by_order_alone() {
    let shop = shop("ft10");
    assert!([11, 8, 12].iter().any(|seed| best_order(&shop, *seed, 8_000_000) == shop.optimum));
}

proptest! {
    #[test]
    fn an_iteration_is_the_makespan_and_a_constant(
        name in prop::sample::select(vec!["ft06", "ft10", "la01"]),
        turns in prop::collection::vec(0_usize..1000, 100),
    ) {
        let shop = shop(name);
        let encoded = shop.encode();
        let (ends, queues) = queues(&shop, &turns[..shop.jobs.len() * shop.machines]);
        let mut simulator = Simulator::new(&encoded.instance);
        simulator.load(&microbatches(&encoded));
        let mut order: Vec<Vec<TaskId>> = (0..shop.jobs.len())
            .map(|job| [Kind::F, Kind::L, Kind::B].map(|kind| simulator.task(job, kind, 0)).to_vec())
            .collect();
        for queue in queues {
            let forwards = queue.iter().map(|(job, index)| simulator.task(*job, Kind::F, index + 1));
            // The jobs turn back one after the other, as they have ended.
            let mut back = queue.clone();
            back.sort_unstable_by_key(|(job, _)| (ends[*job], *job));
            let backwards = back.iter().map(|(job, index)| simulator.task(*job, Kind::B, index + 1));
            order.push(forwards.chain(backwards).collect());
        }
        let makespan = ends.into_iter().max().unwrap();
        let outcome = simulator.run_order(&order).unwrap();
        prop_assert_eq!(encoded.makespan(outcome.iteration), makespan);
        prop_assert!(makespan >= shop.optimum);
        let dispatched = simulator.run_dispatch().unwrap();
        prop_assert!(encoded.makespan(dispatched.iteration) >= shop.optimum);
        prop_assert_eq!(encoded.constant % UNIT, 0);
    }
}
