//! Greedy construction of an allocation: compact stages, each near the previous one.

use crate::cluster::Cluster;
use crate::error::{Result, invalid};

/// Nodes of each stage. Stage by stage, it takes the free nodes closest to each other and to the previous stage.
/// `sizes` are the numbers of nodes, stage 0 (the sources) first. Distances are transfer times in the slower direction.
///
/// # Errors
/// Where the sizes are not positive or do not add up to the nodes of the cluster.
pub fn greedy(cluster: &Cluster, sizes: &[usize]) -> Result<Vec<Vec<usize>>> {
    check_sizes(cluster, sizes)?;
    let n = cluster.nodes().len();
    let bytes = cluster.activation_bytes();
    let distance = |i: usize, j: usize| cluster.transfer_s(i, j, bytes).max(cluster.transfer_s(j, i, bytes));
    let mut free: Vec<usize> = (0..n).collect();
    let mut stages: Vec<Vec<usize>> = Vec::with_capacity(sizes.len());
    for size in sizes {
        let previous = stages.last().map_or(&[][..], Vec::as_slice);
        let approach: Vec<f64> = (0..n)
            .map(|i| previous.iter().map(|p| distance(i, *p)).sum::<f64>() / previous.len().max(1) as f64)
            .collect();
        let mut best: Option<(f64, Vec<usize>)> = None;
        for seed in &free {
            let mut near: Vec<(f64, usize)> = free.iter().map(|i| (distance(*seed, *i) + approach[*i], *i)).collect();
            near.sort_by(|a, b| (a.1 != *seed).cmp(&(b.1 != *seed)).then(a.0.total_cmp(&b.0)).then(a.1.cmp(&b.1)));
            near.truncate(*size);
            let cost = near.iter().map(|(d, _)| d).sum::<f64>();
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, near.into_iter().map(|(_, i)| i).collect()));
            }
        }
        let mut members = best.map(|(_, members)| members).unwrap_or_default();
        members.sort_unstable();
        free.retain(|i| !members.contains(i));
        stages.push(members);
    }
    Ok(stages)
}

/// Rejects sizes that are not positive or do not add up to the nodes of the cluster.
pub(super) fn check_sizes(cluster: &Cluster, sizes: &[usize]) -> Result<()> {
    let n = cluster.nodes().len();
    if let Some(s) = sizes.iter().position(|size| *size == 0) {
        return invalid(format!("sizes[{s}]"), 0, "at least one node for every stage");
    }
    let total: usize = sizes.iter().sum();
    if total != n || sizes.is_empty() {
        return invalid(
            "sizes",
            format!("{sizes:?}, {total} nodes in all"),
            format!("sizes that add up to the {n} nodes of the cluster"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterParts, Links};
    use crate::test_clusters::node;

    fn two_sites() -> Cluster {
        let links = Links::Transfer(vec![vec![0.1, 5.0], vec![5.0, 0.1]]);
        let region_of = Some(vec![0, 1, 0, 1, 0, 1]);
        let parts = ClusterParts {
            region_of,
            ..ClusterParts::new((0..6).map(|i| node(i, [1.0, 1.0, 0.0], 1)).collect(), links)
        };
        Cluster::new(parts, "").unwrap()
    }

    #[test]
    fn stages_stay_within_a_site() {
        assert_eq!(greedy(&two_sites(), &[3, 2, 1]).unwrap(), vec![vec![0, 2, 4], vec![1, 3], vec![5]]);
    }

    #[test]
    fn sizes_must_fit() {
        assert!(greedy(&two_sites(), &[3, 2]).is_err());
        assert!(greedy(&two_sites(), &[6, 0]).is_err());
    }
}
