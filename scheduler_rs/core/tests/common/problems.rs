//! Random problems of all kinds.
#![allow(dead_code, reason = "each test uses a part of it")]

use proptest::prelude::*;
use skippipe_core::cluster::{Cluster, ClusterParts, Links};
use skippipe_core::problem::Problem;
use skippipe_core::rules::{Constraints, MemoryRule, RouteClass};

use super::clusters::{matrix, node};

/// A cluster of `n` nodes in three regions with unequal speeds, memories and links.
pub fn cluster(n: usize, gradients: usize, numbers: &[f64]) -> Cluster {
    let number = |i: usize| numbers[i % numbers.len()];
    let times_s = |i: usize| [0.1 + number(i), 0.2 + number(2 * i + 1), 0.1 * number(3 * i)];
    let nodes = (0..n).map(|i| node(i, times_s(i), 1 + (number(5 * i) * 4.0) as u32)).collect();
    let between = |low: f64, scale: f64, shift: usize| matrix(3, |i, j| low + scale * number(shift + 3 * i + j));
    let links = Links::Rated { latency_s: between(0.0, 0.2, 7), bandwidth: between(1e6, 1e8, 11), overhead_s: 0.01 };
    let parts = ClusterParts {
        region_of: Some((0..n).map(|i| i % 3).collect()),
        activation_bytes: 3e7,
        gradient_bytes: (0..gradients).map(|s| 1e7 * number(s)).collect(),
        step_s: (0..n).map(|i| 0.01 * number(i)).collect(),
        norm_s: 0.003,
        ..ClusterParts::new(nodes, links)
    };
    Cluster::new(parts, "").unwrap()
}

/// Classes of so many routes in all, by random bits.
fn classes(sets: &[u8], stages: usize, routes: usize, cc1: bool) -> Vec<RouteClass> {
    let class = |(i, bits): (usize, &u8)| {
        let bits = if cc1 { bits | 1 } else { *bits };
        let stages: Vec<usize> = (0..stages).filter(|s| bits >> s & 1 == 1).collect();
        let stages = if stages.is_empty() { vec![0] } else { stages };
        RouteClass { stages, routes: routes / sets.len() + usize::from(i < routes % sets.len()) }
    };
    sets.iter().enumerate().map(class).filter(|class| class.routes > 0).collect()
}

prop_compose! {
    /// Up to five stages of up to three nodes, all rules switched on or off, some with a profile or classes, some with
    /// nodes that share processors.
    pub fn problems()(
        sizes in prop::collection::vec(1_usize..4, 2..6),
        numbers in prop::collection::vec(0.0_f64..1.0, 40),
        share in 0.0_f64..1.0,
        counts in prop::collection::vec(0_usize..5, 3),
        gradients in any::<bool>(),
        (cc1, cc2, cc3) in (prop::bool::weighted(0.8), prop::bool::weighted(0.8), prop::bool::weighted(0.8)),
        tc1 in prop::sample::select(vec![MemoryRule::Held, MemoryRule::Routes, MemoryRule::Off]),
        max_swaps in 0_u32..3,
        waves in 1_u32..3,
        max_stage_jump in prop::option::weighted(0.3, 2_u32..5),
        extension in 0_usize..4,
        weights in prop::collection::vec(prop_oneof![1 => Just(0.0), 4 => 0.0_f64..1.0], 4),
        sets in prop::collection::vec(any::<u8>(), 3),
        processors in prop::option::weighted(0.4, prop::collection::vec(prop::option::weighted(0.8, 0_u32..4), 15)),
    ) -> Problem {
        let mut next = 0;
        let stages: Vec<Vec<usize>> = sizes.iter().map(|size| { next += size; (next - size..next).collect() }).collect();
        let mut microbatches: Vec<usize> = (0..sizes[0]).map(|i| counts[i]).collect();
        microbatches[0] += 1;
        let profile = (extension == 1).then(|| weights[..sizes.len() - 1].to_vec());
        let routes = microbatches.iter().map(|count| count.div_ceil(waves as usize)).sum();
        let classes = (extension == 2).then(|| classes(&sets, sizes.len(), routes, cc1));
        let s = sizes.len() as f64;
        let visits = |classes: &Vec<RouteClass>| classes.iter().map(|c| c.routes * c.stages.len()).sum::<usize>();
        let left_out = |classes: &Vec<RouteClass>| 1.0 - visits(classes) as f64 / (s * routes as f64);
        let skip_ratio = classes.as_ref().map_or(share * (s - 1.0) / s, left_out);
        let constraints =
            Constraints { cc1, cc2, cc3, tc1, tc2: true, max_swaps, waves, max_stage_jump, profile, classes };
        let cluster = cluster(next, if gradients { sizes.len() } else { 0 }, &numbers);
        let cluster = processors.map_or(cluster.clone(), |on| cluster.with_processors(&on[..next]).unwrap());
        Problem::new(cluster, stages, vec![], microbatches, skip_ratio, constraints).unwrap()
    }
}
