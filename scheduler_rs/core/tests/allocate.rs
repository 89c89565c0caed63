//! The allocator by its surrogate: matchings, tours and scores against plain references, the search against all
//! partitions, its bounds below them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

#[path = "common/clusters.rs"]
mod clusters;

use clusters::{matrix, node};
use proptest::prelude::*;
use skippipe_core::allocate::matching::bottleneck;
use skippipe_core::allocate::tour::{best_tour, length_of, tour_bound};
use skippipe_core::allocate::{Allocated, Costs, Options, Partition, Request, Scored, allocate, greedy, score};
use skippipe_core::budget::Budget;
use skippipe_core::cluster::{Cluster, ClusterParts, Links};
use skippipe_core::error::Error;

/// Nodes with these forwards; links over nodes, or over regions.
fn cluster(forwards: &[f64], transfer_s: Vec<Vec<f64>>, region_of: Option<Vec<usize>>) -> Cluster {
    let nodes = forwards.iter().enumerate().map(|(i, forward_s)| node(i, [*forward_s, 1.0, 0.1], 2)).collect();
    let parts = ClusterParts { region_of, ..ClusterParts::new(nodes, Links::Transfer(transfer_s)) };
    Cluster::new(parts, "").unwrap()
}

/// These numbers, row by row, from the first again where they run out.
fn filled(side: usize, numbers: &[f64]) -> Vec<Vec<f64>> {
    matrix(side, |i, j| numbers[(i * side + j) % numbers.len()])
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..4, 1..5).prop_filter("few partitions", |sizes| sizes.iter().sum::<usize>() <= 8)
}

/// Whole numbers, so that ties are common.
fn numbers(count: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((1_u32..9).prop_map(f64::from), count)
}

prop_compose! {
    /// A cluster and stage sizes that use up its nodes; links over nodes or over three regions.
    fn cases()(sizes in sizes(), by_region in any::<bool>(), links in numbers(64), forwards in numbers(8))
        -> (Cluster, Vec<usize>) {
        let nodes: usize = sizes.iter().sum();
        let regions = by_region.then(|| (0..nodes).map(|i| i * i % 3).collect());
        let side = if by_region { 3 } else { nodes };
        (cluster(&forwards[..nodes], filled(side, &links), regions), sizes)
    }
}

/// All choices of `count` of the items, in order.
fn arrangements(items: &[usize], count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let rest: Vec<usize> = items.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, x)| *x).collect();
        all.extend(arrangements(&rest, count - 1).into_iter().map(|tail| [vec![*item], tail].concat()));
    }
    all
}

/// The bottleneck of two sets by trying all matchings of the smaller one.
fn naive_bottleneck(small: usize, large: usize, cost: impl Fn(usize, usize) -> f64) -> f64 {
    let columns: Vec<usize> = (0..large).collect();
    let worst = |chosen: &Vec<usize>| chosen.iter().enumerate().map(|(i, j)| cost(i, *j)).fold(0.0, f64::max);
    arrangements(&columns, small).iter().map(worst).fold(f64::INFINITY, f64::min)
}

fn naive_tour(legs: &[f64], stages: usize) -> f64 {
    let others: Vec<usize> = (1..stages).collect();
    let length = |order: &Vec<usize>| length_of(legs, &[vec![0], order.clone()].concat());
    arrangements(&others, stages - 1).iter().map(length).fold(f64::INFINITY, f64::min)
}

/// The surrogate, word for word.
fn naive_score(cluster: &Cluster, stages: &[Vec<usize>]) -> f64 {
    let transfer = |i: usize, j: usize| cluster.transfer_s(i, j, 0.0);
    let mut replica: f64 = 0.0;
    for members in stages {
        for i in members {
            for j in members.iter().filter(|j| *j != i) {
                replica = replica.max(transfer(*i, *j));
            }
        }
    }
    let count = stages.len();
    let mut legs = vec![0.0; count * count];
    for a in 0..count {
        for b in (0..count).filter(|b| *b != a) {
            let (small, large) =
                if stages[a].len() < stages[b].len() { (&stages[a], &stages[b]) } else { (&stages[b], &stages[a]) };
            let trip = |i: usize, j: usize| transfer(small[i], large[j]) + transfer(large[j], small[i]);
            legs[a * count + b] = naive_bottleneck(small.len(), large.len(), trip);
        }
    }
    let tour = if count > 1 { naive_tour(&legs, count) } else { 0.0 };
    let mean = |members: &Vec<usize>| {
        members.iter().map(|i| cluster.nodes()[*i].forward_s).sum::<f64>() / members.len() as f64
    };
    replica + tour + stages.iter().map(|members| 2.0 * mean(members)).sum::<f64>()
}

fn diameter(cluster: &Cluster, members: &[usize]) -> f64 {
    let pairs = members.iter().flat_map(|i| members.iter().map(move |j| (*i, *j)));
    pairs.map(|(i, j)| cluster.transfer_s(i, j, 0.0)).fold(0.0, f64::max)
}

/// All partitions into stages of these sizes.
fn partitions(sizes: &[usize], nodes: &[usize]) -> Vec<Vec<Vec<usize>>> {
    let Some((size, later)) = sizes.split_first() else { return vec![vec![]] };
    let mut all = Vec::new();
    for mask in 0_u32..1 << nodes.len() {
        if mask.count_ones() as usize == *size {
            let side = |is_own: bool| -> Vec<usize> {
                nodes
                    .iter()
                    .enumerate()
                    .filter(|(k, _)| (mask >> k & 1 == 1) == is_own)
                    .map(|(_, node)| *node)
                    .collect()
            };
            let (own, rest) = (side(true), side(false));
            all.extend(partitions(later, &rest).into_iter().map(|tail| [vec![own.clone()], tail].concat()));
        }
    }
    all
}

fn request(sizes: &[usize]) -> Request {
    Request { sizes: sizes.to_vec(), sources: None, max_replica_transfer_s: None }
}

fn run(cluster: &Cluster, request: &Request, work: u64, threads: usize) -> Result<Allocated, Error> {
    allocate(cluster, request, Options { seed: 5, threads, without: None }, &Budget::new(None, Some(work)))
}

fn sorted(stages: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut stages = stages.to_vec();
    stages.iter_mut().for_each(|members| members.sort_unstable());
    stages.sort();
    stages
}

/// `scored` is a partition into these sizes, and its figures are those of the reference.
fn assert_sound(cluster: &Cluster, sizes: &[usize], scored: &Scored) {
    let mut nodes: Vec<usize> = scored.stages.concat();
    nodes.sort_unstable();
    assert_eq!(nodes, (0..cluster.nodes().len()).collect::<Vec<_>>());
    let counts: Vec<usize> = scored.stages.iter().map(Vec::len).collect();
    assert_eq!(counts[0], sizes[0]);
    let order = |counts: &[usize]| {
        let mut counts = counts.to_vec();
        counts.sort_unstable();
        counts
    };
    assert_eq!(order(&counts), order(sizes));
    assert!((scored.score_s - (scored.replica_s + scored.tour_s + scored.compute_s)).abs() < 1e-9);
    assert!((scored.score_s - naive_score(cluster, &scored.stages)).abs() < 1e-9);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matching_is_the_least_of_all((rows, columns) in (1_usize..5, 1_usize..7), costs in numbers(42)) {
        let cost: Vec<Vec<f64>> = (0..rows).map(|i| (0..columns).map(|j| costs[i * 7 + j]).collect()).collect();
        let (small, large) = (rows.min(columns), rows.max(columns));
        let naive = naive_bottleneck(small, large, |i, j| if rows <= columns { cost[i][j] } else { cost[j][i] });
        prop_assert_eq!(bottleneck(&cost), naive);
    }

    #[test]
    fn tour_is_the_least_of_all_in_either_direction(stages in 2_usize..7, legs in numbers(49), is_open in any::<bool>()) {
        let mut legs = legs[..stages * stages].to_vec();
        if is_open {
            (0..stages).for_each(|a| legs[a * stages] = 0.0);
        }
        let tour = best_tour(&legs, stages);
        prop_assert_eq!(tour.order[0], 0);
        prop_assert_eq!(tour.length, naive_tour(&legs, stages));
        prop_assert_eq!(tour.length, length_of(&legs, &tour.order));
        prop_assert_eq!(tour.bound, tour.length);
        if stages > 2 {
            prop_assert!(tour_bound(&legs, stages, 1.5 * tour.length) <= tour.length + 1e-9);
        }
    }

    #[test]
    fn score_is_what_the_definition_says((cluster, sizes) in cases(), shift in 0_usize..8) {
        let nodes = cluster.nodes().len();
        let mut nodes_in_turn = (0..nodes).map(|i| (i + shift) % nodes);
        let stages: Vec<Vec<usize>> = sizes.iter().map(|size| nodes_in_turn.by_ref().take(*size).collect()).collect();
        let scored = score(&cluster, &stages).unwrap();
        assert_sound(&cluster, &sizes, &scored);
        prop_assert_eq!(&scored.stages[0], &sorted(&stages[..1])[0]);
        prop_assert_eq!(sorted(&scored.stages), sorted(&stages));
        // The order in which the other stages come is no matter.
        let mut turned = stages.clone();
        turned[1..].reverse();
        prop_assert_eq!(score(&cluster, &turned).unwrap(), scored);
    }

    #[test]
    fn changes_score_as_if_begun_anew((cluster, sizes) in cases(), draws in prop::collection::vec((0_u32..8, 0_u32..8, 0_u32..8, any::<bool>()), 12)) {
        let costs = Costs::new(&cluster);
        let stages = greedy(&cluster, &sizes).unwrap();
        let mut partition = Partition::new(&costs, &stages, 4.0).with_cache();
        for (a, b, c, is_kept) in draws {
            let nodes = cluster.nodes().len() as u32;
            let mut cycle = vec![a % nodes];
            for next in [b % nodes, c % nodes] {
                if cycle.iter().all(|node| partition.stage_of(*node) != partition.stage_of(next)) {
                    cycle.push(next);
                }
            }
            let before = (partition.terms(), partition.members().to_vec());
            partition.exchange(&cycle, f64::INFINITY);
            if is_kept {
                partition.improve_tour();
            } else {
                partition.undo();
                prop_assert_eq!(&before, &(partition.terms(), partition.members().to_vec()));
            }
            let stages: Vec<Vec<usize>> =
                partition.members().iter().map(|members| members.iter().map(|node| *node as usize).collect()).collect();
            prop_assert_eq!(partition.terms(), Partition::new(&costs, &stages, 4.0).terms());
            prop_assert!((partition.terms().score_s() - naive_score(&cluster, &stages)).abs() < 1e-9);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_clusters_are_solved((cluster, sizes) in cases(), limit in prop::option::of(2_u32..9), pinned in any::<bool>()) {
        let mut request = request(&sizes);
        request.max_replica_transfer_s = limit.map(f64::from);
        if pinned {
            request.sources = Some((0..sizes[0]).map(|i| i * i % cluster.nodes().len()).collect());
            let mut distinct = request.sources.clone().unwrap();
            distinct.sort_unstable();
            distinct.dedup();
            if distinct.len() < sizes[0] {
                request.sources = Some((0..sizes[0]).collect());
            }
        }
        let nodes: Vec<usize> = (0..cluster.nodes().len()).collect();
        let keeps = |stages: &&Vec<Vec<usize>>| {
            let within = |members: &Vec<usize>| limit.is_none_or(|limit| diameter(&cluster, members) <= f64::from(limit));
            let sources = request.sources.as_ref().is_none_or(|s| s.iter().all(|node| stages[0].contains(node)));
            sources && stages.iter().all(within)
        };
        let all = partitions(&sizes, &nodes);
        let best = all.iter().filter(keeps).map(|stages| naive_score(&cluster, stages)).fold(f64::INFINITY, f64::min);
        match run(&cluster, &request, 1, 1) {
            Err(Error::Impossible { .. }) => prop_assert!(best.is_infinite()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
            Ok(found) => {
                assert_sound(&cluster, &sizes, &found.best);
                prop_assert!(found.optimal);
                prop_assert!((found.best.score_s - best).abs() < 1e-9);
                prop_assert!(found.lower_bound_s <= best + 1e-9);
                prop_assert!(keeps(&&found.best.stages));
                if let Some(second) = &found.runner_up {
                    assert_sound(&cluster, &sizes, second);
                    prop_assert!(keeps(&&second.stages));
                    prop_assert!(second.score_s >= found.best.score_s);
                    prop_assert_ne!(sorted(&second.stages), sorted(&found.best.stages));
                }
            }
        }
    }

    #[test]
    fn threads_change_nothing(links in numbers(144), forwards in numbers(12), limit in prop::option::of(6_u32..9)) {
        let cluster = cluster(&forwards, filled(12, &links), None);
        let mut request = request(&[4, 3, 3, 2]);
        request.max_replica_transfer_s = limit.map(f64::from);
        let results = [1, 2, 4].map(|threads| run(&cluster, &request, 9_000, threads));
        prop_assert_eq!(&results[0], &results[1]);
        prop_assert_eq!(&results[0], &results[2]);
    }
}

/// A deterministic stand-in for a map: nodes on a plane, links as long as the distance between them.
fn plane(nodes: usize) -> Cluster {
    let position = |i: usize| ((i * 37 % 101) as f64 / 10.0, (i * 53 % 103) as f64 / 10.0);
    let time = |i: usize, j: usize| {
        let ((a, b), (c, d)) = (position(i), position(j));
        0.2 + (a - c).hypot(b - d)
    };
    cluster(&vec![0.5; nodes], matrix(nodes, time), None)
}

#[test]
fn large_clusters_beat_the_greedy_start_and_stay_above_the_bound() {
    let cluster = plane(60);
    let sizes = [8, 6, 6, 6, 6, 6, 6, 6, 5, 5];
    let found = run(&cluster, &request(&sizes), 60_000, 1).unwrap();
    let first = score(&cluster, &greedy(&cluster, &sizes).unwrap()).unwrap();
    assert!(found.best.score_s < 0.9 * first.score_s, "{} against {}", found.best.score_s, first.score_s);
    assert!(found.lower_bound_s > found.best.compute_s && found.lower_bound_s <= found.best.score_s);
    assert!(!found.optimal);
}

#[test]
fn long_tours_are_near_their_bound() {
    let stages = 40;
    let cluster = plane(stages);
    let legs: Vec<f64> = (0..stages * stages).map(|k| cluster.transfer_s(k / stages, k % stages, 0.0)).collect();
    let tour = best_tour(&legs, stages);
    let mut order = tour.order.clone();
    order.sort_unstable();
    assert_eq!(order, (0..stages).collect::<Vec<_>>());
    assert_eq!(tour.length, length_of(&legs, &tour.order));
    assert!(tour.bound <= tour.length && tour.length < 1.03 * tour.bound, "{} {}", tour.length, tour.bound);
}

#[test]
fn stages_of_one_node_are_a_tour() {
    let cluster = plane(16);
    let legs: Vec<f64> =
        (0..256).map(|k| if k / 16 == k % 16 { 0.0 } else { 2.0 * cluster.transfer_s(k / 16, k % 16, 0.0) }).collect();
    let mut request = request(&[1; 16]);
    request.sources = Some(vec![0]);
    let found = run(&cluster, &request, 1, 1).unwrap();
    assert!((found.best.tour_s - best_tour(&legs, 16).length).abs() < 1e-9);
    assert!(found.optimal && found.best.replica_s == 0.0 && found.runner_up.is_none());
}

#[test]
fn what_cannot_be_kept_is_said() {
    let cluster = plane(12);
    let refused = |request: &Request| run(&cluster, request, 1000, 1).unwrap_err();
    let message = |request: &Request| refused(request).to_string();
    let four = request(&[3, 3, 3, 3]);
    assert!(message(&request(&[3, 3])).contains("sizes"));
    assert!(
        message(&Request { sources: Some(vec![0, 1]), ..four.clone() })
            .contains("sources: expected the 3 nodes of stage 0, as many as sizes[0], got a list of 2")
    );
    assert!(
        message(&Request { sources: Some(vec![0, 1, 12]), ..four.clone() })
            .contains("sources[2]: expected a node in 0..11, got 12")
    );
    assert!(message(&Request { sources: Some(vec![0, 1, 1]), ..four.clone() }).contains("node 1 twice"));
    assert!(
        message(&Request { max_replica_transfer_s: Some(-1.0), ..four.clone() }).contains("max_replica_transfer_s")
    );
    let tight = Request { max_replica_transfer_s: Some(0.1), ..four };
    assert!(matches!(refused(&tight), Error::Impossible { rule: "max_replica_transfer_s", .. }));
    let stages = |stages: &[&[usize]]| stages.iter().map(|s| s.to_vec()).collect::<Vec<_>>();
    for (bad, key) in [
        (stages(&[&[0, 1, 2], &[2, 3]]), "stages[1][0]: expected "),
        (stages(&[&[0, 99]]), "stages[0][1]: expected "),
        (stages(&[&[0], &[]]), "stages[1]: expected "),
    ] {
        assert!(score(&cluster, &bad).unwrap_err().to_string().contains(key), "{key}");
    }
}

#[test]
fn a_call_can_be_cancelled() {
    let budget = Budget::new(None, None);
    budget.cancel();
    let result = allocate(&plane(20), &request(&[5, 5, 5, 5]), Options { seed: 0, threads: 1, without: None }, &budget);
    assert_eq!(result, Err(Error::Cancelled));
}

/// The published instance and the one that the reference's script makes today, where the data lie beside the repository.
#[test]
fn published_instances_are_solved() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    for (name, most) in [("published20", 18.992), ("fresh20", 35.295)] {
        let Ok(text) = std::fs::read_to_string(folder.join(format!("{name}.cluster.json"))) else {
            eprintln!("left out: {name} is not there");
            continue;
        };
        let cluster = Cluster::from_json(&text).unwrap();
        let found = run(&cluster, &request(&[5, 3, 3, 3, 3, 3]), 300_000, 1).unwrap();
        assert!(found.best.score_s <= most, "{name}: {}", found.best.score_s);
        assert!(found.lower_bound_s > 0.75 * most, "{name}: {}", found.lower_bound_s);
    }
}
