//! The surrogate score of an allocation.

use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::partition::{Partition, ScoreTerms};
use super::tour::best_tour;
use crate::cluster::Cluster;
use crate::error::{Result, invalid};

/// An allocation and its surrogate score. Stages are in the order of the tour, their nodes ascending.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Nodes of each stage, stage 0 first.
    pub stages: Vec<Vec<usize>>,
    /// Sum of the terms below, in seconds.
    pub score_s: f64,
    /// Longest transfer of a message between two nodes of one stage, in seconds.
    pub replica_s: f64,
    /// Shortest tour from stage 0 over all stages and back, by bottleneck matchings of round trips, in seconds.
    pub tour_s: f64,
    /// Sum over the stages of twice the mean forward time, in seconds.
    pub compute_s: f64,
}

impl Scored {
    pub(super) fn terms(&self) -> ScoreTerms {
        ScoreTerms { replica_s: self.replica_s, tour_s: self.tour_s, compute_s: self.compute_s, excess_s: 0.0 }
    }
}

/// Scores an allocation. Stage 0 stays first, and the others are put in the order of the shortest tour, in the
/// direction whose second stage has the lower first node. Nodes that serve no stage do not count.
///
/// # Errors
/// Where a stage is empty, or has a node that is not in the cluster or serves another stage.
pub fn score(cluster: &Cluster, stages: &[Vec<usize>]) -> Result<Scored> {
    check_members(cluster.nodes().len(), stages)?;
    Ok(scored(&Costs::new(cluster), stages))
}

fn check_members(nodes: usize, stages: &[Vec<usize>]) -> Result<()> {
    let mut stage_of = vec![None; nodes];
    for (s, members) in stages.iter().enumerate() {
        if members.is_empty() {
            return invalid(format!("stages[{s}]"), "an empty list", "at least one node for every stage");
        }
        for (i, node) in members.iter().enumerate() {
            match stage_of.get_mut(*node) {
                None => {
                    return invalid(format!("stages[{s}][{i}]"), node, format!("a node in 0..{}", nodes - 1));
                }
                Some(Some(other)) => {
                    let expected = format!("every node in one stage (it serves stage {other} already)");
                    return invalid(format!("stages[{s}][{i}]"), node, expected);
                }
                Some(free) => *free = Some(s),
            }
        }
    }
    Ok(())
}

/// [`score`] without checks: `stages` must be disjoint and not empty.
#[must_use]
pub fn scored(costs: &Costs, stages: &[Vec<usize>]) -> Scored {
    let mut stages = stages.to_vec();
    for members in &mut stages {
        members.sort_unstable();
    }
    // The choice among tours of the same length must not depend on the input order of the stages.
    if let Some(rest) = stages.get_mut(1..) {
        rest.sort_unstable();
    }
    let count = stages.len();
    let mut partition = Partition::new(costs, &stages, f64::INFINITY);
    let mut legs = vec![0.0; count * count];
    for a in 0..count {
        for b in (0..count).filter(|b| *b != a) {
            legs[a * count + b] = partition.leg(a, b);
        }
    }
    let mut tour = best_tour(&legs, count);
    if count > 2 && tour.order[count - 1] < tour.order[1] {
        tour.order[1..].reverse();
    }
    let ScoreTerms { replica_s, compute_s, .. } = partition.terms();
    let stages: Vec<Vec<usize>> = tour.order.iter().map(|s| std::mem::take(&mut stages[*s])).collect();
    let tour_s = tour.length;
    Scored { stages, score_s: replica_s + tour_s + compute_s, replica_s, tour_s, compute_s }
}
