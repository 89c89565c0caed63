//! The travelling-salesman problem over the stages: the shortest tour that starts at stage 0.
//!
//! `legs` is a square matrix, row-major: entry (a, b) is the cost from stage a to stage b, and entry (a, 0) the cost of
//! ending at stage a: the return to stage 0, or 0 for an open tour. It may be asymmetric.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

/// Up to so many stages the tour is optimal.
pub const MAX_EXACT: usize = 16;
/// Relative tolerance of an improvement.
const NOISE: f64 = 1e-12;
/// Longest segment that Or-opt moves.
const MAX_SEGMENT: usize = 3;
/// Limit on the starts of the heuristic, each with another second stage.
const MAX_STARTS: usize = 24;
/// Work limit of the iterated local search, in legs.
const PERTURBATION_WORK: usize = 200_000;
/// Steps of the subgradient method.
const SUBGRADIENT_STEPS: usize = 400;
/// Steps without improvement after which the step size is halved.
const PATIENCE: u32 = 8;

/// A tour over all stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Tour {
    /// All stages, stage 0 first.
    pub order: Vec<usize>,
    /// Sum of its legs, including that from the last stage to stage 0.
    pub length: f64,
    /// Lower bound on the length of all tours.
    pub bound: f64,
}

/// The shortest tour: optimal up to [`MAX_EXACT`] stages, beyond that a good one with a lower bound.
#[must_use]
pub fn best_tour(legs: &[f64], stages: usize) -> Tour {
    let order: Vec<usize> = (0..stages).collect();
    if stages < 3 {
        let length = if stages == 2 { length_of(legs, &order) } else { 0.0 };
        return Tour { order, length, bound: length };
    }
    if stages <= MAX_EXACT {
        let order = HeldKarp::default().order(legs, stages);
        let length = length_of(legs, &order);
        return Tour { order, length, bound: length };
    }
    let (order, length) = iterated_local_search(legs, stages);
    Tour { order, length, bound: tour_bound(legs, stages, length).min(length) }
}

/// Sum of the legs of a closed tour of at least two stages.
#[must_use]
pub fn length_of(legs: &[f64], order: &[usize]) -> f64 {
    let stages = order.len();
    order.iter().zip(order.iter().cycle().skip(1)).map(|(a, b)| legs[a * stages + b]).sum()
}

/// Dynamic programming over sets of stages (Held and Karp 1962), with its working memory.
#[derive(Clone, Debug, Default)]
pub struct HeldKarp {
    /// Shortest path from stage 0 over a set (bit k: stage k + 1) to its member `end`: `[set * (stages - 1) + end]`.
    shortest: Vec<f64>,
}

impl HeldKarp {
    /// Length of the shortest tour of 2 to [`MAX_EXACT`] stages.
    pub fn length(&mut self, legs: &[f64], stages: usize) -> f64 {
        let m = stages - 1;
        self.fill(legs, stages);
        let all = ((1 << m) - 1) * m;
        (0..m).map(|end| self.shortest[all + end] + legs[(end + 1) * stages]).fold(f64::INFINITY, f64::min)
    }

    /// The shortest tour of 2 to [`MAX_EXACT`] stages.
    pub fn order(&mut self, legs: &[f64], stages: usize) -> Vec<usize> {
        let m = stages - 1;
        self.fill(legs, stages);
        let mut order = Vec::with_capacity(stages);
        let mut set: usize = (1 << m) - 1;
        // Backwards from stage 0: the end with the shortest rest.
        let mut next = 0;
        while set != 0 {
            let ends = (0..m).filter(|end| set >> end & 1 == 1);
            let key = |end: usize| self.shortest[set * m + end] + legs[(end + 1) * stages + next];
            let Some(end) = ends.min_by(|a, b| key(*a).total_cmp(&key(*b))) else { break };
            order.push(end + 1);
            set ^= 1 << end;
            next = end + 1;
        }
        order.push(0);
        order.reverse();
        order
    }

    fn fill(&mut self, legs: &[f64], stages: usize) {
        let m = stages - 1;
        self.shortest.clear();
        self.shortest.resize(m << m, f64::INFINITY);
        for end in 0..m {
            self.shortest[(1 << end) * m + end] = legs[end + 1];
        }
        for set in 1..1_usize << m {
            let mut ends = set;
            while ends != 0 {
                let end = ends.trailing_zeros() as usize;
                ends &= ends - 1;
                let so_far = self.shortest[set * m + end];
                let row = &legs[(end + 1) * stages + 1..][..m];
                let mut rest = !set & ((1 << m) - 1);
                while rest != 0 {
                    let next = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    let entry = &mut self.shortest[(set | 1 << next) * m + next];
                    *entry = entry.min(so_far + row[next]);
                }
            }
        }
    }
}

/// Improves a tour in place by 2-opt and Or-opt moves to a local optimum.
pub fn two_opt_and_or_opt(legs: &[f64], order: &mut [usize]) {
    let mut sums = Sums::default();
    loop {
        sums.take(legs, order);
        if !two_opt(legs, order, &sums) && !or_opt(legs, order) {
            break;
        }
    }
}

/// Prefix sums of the legs of a tour, in both directions.
#[derive(Default)]
struct Sums {
    ahead: Vec<f64>,
    back: Vec<f64>,
}

impl Sums {
    fn take(&mut self, legs: &[f64], order: &[usize]) {
        let n = order.len();
        for (sums, reverse) in [(&mut self.ahead, false), (&mut self.back, true)] {
            sums.clear();
            sums.push(0.0);
            let mut sum = 0.0;
            for pair in order.windows(2) {
                let (a, b) = if reverse { (pair[1], pair[0]) } else { (pair[0], pair[1]) };
                sum += legs[a * n + b];
                sums.push(sum);
            }
        }
    }
}

fn two_opt(legs: &[f64], order: &mut [usize], sums: &Sums) -> bool {
    let n = order.len();
    let leg = |a: usize, b: usize| legs[a * n + b];
    for i in 1..n {
        for j in i + 1..n {
            let (before, after) = (order[i - 1], order[(j + 1) % n]);
            let old = leg(before, order[i]) + sums.ahead[j] - sums.ahead[i] + leg(order[j], after);
            let new = leg(before, order[j]) + sums.back[j] - sums.back[i] + leg(order[i], after);
            if new < old - NOISE * (1.0 + old) {
                order[i..=j].reverse();
                return true;
            }
        }
    }
    false
}

fn or_opt(legs: &[f64], order: &mut [usize]) -> bool {
    let n = order.len();
    let leg = |a: usize, b: usize| legs[a * n + b];
    for i in 1..n {
        for j in i..n.min(i + MAX_SEGMENT) {
            let (first, last) = (order[i], order[j]);
            let (before, after) = (order[i - 1], order[(j + 1) % n]);
            let (mut ahead, mut back) = (0.0, 0.0);
            for pair in order[i..=j].windows(2) {
                ahead += leg(pair[0], pair[1]);
                back += leg(pair[1], pair[0]);
            }
            let gain = leg(before, first) + leg(last, after) - leg(before, after);
            for at in (0..n).filter(|at| *at + 1 < i || *at > j) {
                let (left, right) = (order[at], order[(at + 1) % n]);
                let joint = leg(left, right);
                let straight = leg(left, first) + leg(last, right) - joint;
                let turned = leg(left, last) + leg(first, right) - joint + back - ahead;
                if straight.min(turned) < gain - NOISE * (1.0 + gain.abs()) {
                    if turned < straight {
                        order[i..=j].reverse();
                    }
                    if at < i {
                        order[at + 1..=j].rotate_right(j - i + 1);
                    } else {
                        order[i..=at].rotate_left(j - i + 1);
                    }
                    return true;
                }
            }
        }
    }
    false
}

/// Iterated local search: nearest-neighbour tours from several second stages, improved; then the best one is perturbed
/// by double bridges (exchanges of two adjacent segments) and improved again.
fn iterated_local_search(legs: &[f64], stages: usize) -> (Vec<usize>, f64) {
    let mut best: Option<(Vec<usize>, f64)> = None;
    let keep = |order: Vec<usize>, best: &mut Option<(Vec<usize>, f64)>| {
        let length = length_of(legs, &order);
        if best.as_ref().is_none_or(|(_, least)| length < *least) {
            *best = Some((order, length));
        }
    };
    let stride = (stages - 1).div_ceil(MAX_STARTS);
    for second in (1..stages).step_by(stride) {
        let mut order = nearest_neighbour(legs, stages, second);
        two_opt_and_or_opt(legs, &mut order);
        keep(order, &mut best);
    }
    let mut rng = Pcg64::seed_from_u64(0);
    for _ in 0..PERTURBATION_WORK / (stages * stages) {
        let Some((order, _)) = &best else { break };
        let mut order = order.clone();
        let mut cuts = [0; 3].map(|_| rng.random_range(1..=stages));
        cuts.sort_unstable();
        order[cuts[0]..cuts[2]].rotate_left(cuts[1] - cuts[0]);
        two_opt_and_or_opt(legs, &mut order);
        keep(order, &mut best);
    }
    best.unwrap_or_else(|| ((0..stages).collect(), f64::INFINITY))
}

fn nearest_neighbour(legs: &[f64], stages: usize, second: usize) -> Vec<usize> {
    let mut order = vec![0, second];
    let mut rest: Vec<usize> = (1..stages).filter(|s| *s != second).collect();
    let mut at = second;
    while let Some((index, next)) = rest
        .iter()
        .copied()
        .enumerate()
        .min_by(|a, b| legs[at * stages + a.1].total_cmp(&legs[at * stages + b.1]).then(a.1.cmp(&b.1)))
    {
        rest.remove(index);
        order.push(next);
        at = next;
    }
    order
}

/// Lower bound on tours of at least three stages by Lagrangian relaxation to 1-trees (Held and Karp 1970): a minimum
/// spanning tree over the stages other than 0, each edge by its shorter direction, plus the cheapest pair of legs that
/// leaves stage 0 and returns to it at different stages. Prices on the stages' degrees follow the subgradient. `length`
/// is that of some tour.
#[must_use]
pub fn tour_bound(legs: &[f64], stages: usize, length: f64) -> f64 {
    let mut price = vec![0.0; stages];
    let mut best = f64::NEG_INFINITY;
    let (mut scale, mut stalled) = (1.0, 0);
    for _ in 0..SUBGRADIENT_STEPS {
        let (bound, degree) = one_tree(legs, stages, &price);
        stalled = if bound > best { 0 } else { stalled + 1 };
        best = best.max(bound);
        let off: f64 = degree.iter().map(|d| (f64::from(*d) - 2.0).powi(2)).sum();
        if off == 0.0 {
            break;
        }
        if stalled == PATIENCE {
            (scale, stalled) = (scale / 2.0, 0);
        }
        // Polyak step towards the length of a tour.
        let step = scale * (length - bound).max(0.0) / off;
        for (price, degree) in price.iter_mut().zip(&degree).skip(1) {
            *price += step * (f64::from(*degree) - 2.0);
        }
    }
    best
}

/// Length of the minimum 1-tree under these prices, less twice their sum, and the degree of each stage.
fn one_tree(legs: &[f64], stages: usize, price: &[f64]) -> (f64, Vec<u32>) {
    let leg = |a: usize, b: usize| legs[a * stages + b].min(legs[b * stages + a]) + price[a] + price[b];
    let mut degree = vec![0; stages];
    let mut length = -2.0 * price.iter().sum::<f64>();
    let mut least = vec![(f64::INFINITY, 1); stages];
    let mut inside = vec![false; stages];
    let mut at = 1;
    inside[1] = true;
    for _ in 2..stages {
        let mut next = (f64::INFINITY, 0);
        for other in (1..stages).filter(|s| !inside[*s]) {
            if leg(at, other) < least[other].0 {
                least[other] = (leg(at, other), at);
            }
            if next.1 == 0 || least[other].0 < next.0 {
                next = (least[other].0, other);
            }
        }
        length += next.0;
        at = next.1;
        inside[at] = true;
        degree[at] += 1;
        degree[least[at].1] += 1;
    }
    let mut ends = (f64::INFINITY, 1, 2);
    for (out, back) in (1..stages).flat_map(|a| (1..stages).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        let both = legs[out] + price[out] + legs[back * stages] + price[back];
        if both < ends.0 {
            ends = (both, out, back);
        }
    }
    degree[0] = 2;
    degree[ends.1] += 1;
    degree[ends.2] += 1;
    (length + ends.0, degree)
}
