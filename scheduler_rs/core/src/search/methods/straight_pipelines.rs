//! Straight pipelines (`full`, DT-FM): each source has one, and from stage to stage a bottleneck
//! b-matching says which replica serves which.

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use crate::problem::Instance;
use crate::simulate::MicrobatchRoute;
use crate::time::Time;

/// One pipeline a source, all its microbatches on it. Each replica of a stage serves
/// `pipelines / replicas` of them, rounded down or up; the slowest link between two stages is as fast as it
/// can be; ties are drawn.
#[must_use]
pub fn pipelines(instance: &Instance, rng: &mut Pcg64) -> Vec<MicrobatchRoute> {
    let mut columns: Vec<Vec<u32>> = instance.sources.iter().map(|s| vec![s.node as u32]).collect();
    for stage in instance.present.iter().filter(|s| **s != 0) {
        let replicas = &instance.members[*stage];
        let from: Vec<usize> = columns.iter().map(|c| c[c.len() - 1] as usize).collect();
        let chosen =
            bottleneck_matching(&from, replicas, &|i, j| instance.transfer(i, j).max(instance.transfer(j, i)), rng);
        for (column, replica) in columns.iter_mut().zip(chosen) {
            column.push(replicas[replica] as u32);
        }
    }
    let mut microbatches = Vec::new();
    for (source, nodes) in instance.sources.iter().zip(columns) {
        for _ in 0..source.microbatches {
            microbatches.push(MicrobatchRoute {
                id: microbatches.len(),
                source: source.node,
                route: microbatches.len(),
                wave: 0,
                class: source.class,
                nodes: nodes.clone(),
            });
        }
    }
    microbatches
}

/// For each of `from` the index of its partner in `to`, so that the greatest cost is least and every partner
/// serves `from.len() / to.len()` rounded down or up.
fn bottleneck_matching(
    from: &[usize],
    to: &[usize],
    cost: &dyn Fn(usize, usize) -> Time,
    rng: &mut Pcg64,
) -> Vec<usize> {
    let mut costs: Vec<Time> =
        from.iter().flat_map(|i| to.iter().map(move |j| (*i, *j))).map(|(i, j)| cost(i, j)).collect();
    costs.sort_unstable();
    costs.dedup();
    // The dearest threshold allows every pair, which always has a solution.
    let (mut low, mut high) = (0, costs.len() - 1);
    while low < high {
        let middle = usize::midpoint(low, high);
        if Matching::new(from, to, cost, costs[middle], rng).solve().is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Matching::new(from, to, cost, costs[low], rng)
        .solve()
        .unwrap_or_else(|| (0..from.len()).map(|i| i % to.len()).collect())
}

/// Bipartite matching of `left` with slots: each partner has as many as it must fill and perhaps one more.
struct Matching {
    /// Slots that each of `left` may take, in random order.
    allowed: Vec<Vec<usize>>,
    /// Partner that each slot belongs to.
    partner_of: Vec<usize>,
    must_fill: usize,
    taken_by: Vec<Option<usize>>,
    takes: Vec<Option<usize>>,
}

impl Matching {
    fn new(from: &[usize], to: &[usize], cost: &dyn Fn(usize, usize) -> Time, limit: Time, rng: &mut Pcg64) -> Self {
        let (least, extra) = (from.len() / to.len(), usize::from(!from.len().is_multiple_of(to.len())));
        let mut partner_of: Vec<usize> = (0..to.len()).flat_map(|j| std::iter::repeat_n(j, least)).collect();
        let must_fill = partner_of.len();
        partner_of.extend((0..to.len()).flat_map(|j| std::iter::repeat_n(j, extra)));
        let allowed = from
            .iter()
            .map(|i| {
                let mut slots: Vec<usize> =
                    (0..partner_of.len()).filter(|slot| cost(*i, to[partner_of[*slot]]) <= limit).collect();
                slots.shuffle(rng);
                slots
            })
            .collect();
        Self { allowed, taken_by: vec![None; partner_of.len()], takes: vec![None; from.len()], partner_of, must_fill }
    }

    /// Fills the slots that must be filled, then serves the rest of the left side. An augmenting path
    /// never frees what is matched, so the second step keeps the first.
    fn solve(mut self) -> Option<Vec<usize>> {
        for slot in 0..self.must_fill {
            if self.taken_by[slot].is_none() && !self.fill(slot, &mut vec![false; self.partner_of.len()]) {
                return None;
            }
        }
        for left in 0..self.takes.len() {
            if self.takes[left].is_none() && !self.serve(left, &mut vec![false; self.takes.len()]) {
                return None;
            }
        }
        self.takes.iter().map(|slot| slot.map(|s| self.partner_of[s])).collect()
    }

    fn fill(&mut self, slot: usize, seen: &mut [bool]) -> bool {
        seen[slot] = true;
        for left in 0..self.takes.len() {
            if !self.allowed[left].contains(&slot) {
                continue;
            }
            let free = match self.takes[left] {
                None => true,
                Some(other) => !seen[other] && self.fill(other, seen),
            };
            if free {
                self.takes[left] = Some(slot);
                self.taken_by[slot] = Some(left);
                return true;
            }
        }
        false
    }

    fn serve(&mut self, left: usize, seen: &mut [bool]) -> bool {
        seen[left] = true;
        for i in 0..self.allowed[left].len() {
            let slot = self.allowed[left][i];
            let free = match self.taken_by[slot] {
                None => true,
                Some(other) => !seen[other] && self.serve(other, seen),
            };
            if free {
                self.takes[left] = Some(slot);
                self.taken_by[slot] = Some(left);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    fn best_by_hand(from: usize, to: usize, cost: &[Vec<Time>], used: &mut Vec<usize>, at: usize) -> Time {
        if at == from {
            let fair = used.iter().all(|u| *u >= from / to);
            return if fair { 0 } else { Time::MAX };
        }
        let mut best = Time::MAX;
        for j in 0..to {
            if used[j] < from.div_ceil(to) {
                used[j] += 1;
                best = best.min(cost[at][j].max(best_by_hand(from, to, cost, used, at + 1)));
                used[j] -= 1;
            }
        }
        best
    }

    #[test]
    fn bottleneck_is_the_least_possible() {
        let mut rng = Pcg64::seed_from_u64(1);
        for _ in 0..300 {
            let (from, to) = (rng.random_range(1..7), rng.random_range(1..5));
            let cost: Vec<Vec<Time>> = (0..from).map(|_| (0..to).map(|_| rng.random_range(0..12)).collect()).collect();
            let (left, right): (Vec<usize>, Vec<usize>) = ((0..from).collect(), (0..to).collect());
            let chosen = bottleneck_matching(&left, &right, &|i, j| cost[i][j], &mut rng);
            let reached = chosen.iter().enumerate().map(|(i, j)| cost[i][*j]).max().unwrap();
            assert_eq!(reached, best_by_hand(from, to, &cost, &mut vec![0; to], 0));
            for j in 0..to {
                let served = chosen.iter().filter(|c| **c == j).count();
                assert!(served >= from / to && served <= from.div_ceil(to));
            }
        }
    }
}
