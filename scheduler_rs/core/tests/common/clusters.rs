//! The one builder of nodes, matrices and clusters, for unit tests, integration tests and benches.
#![allow(dead_code, clippy::unwrap_used, reason = "each of them uses a part of it")]

use skippipe_core::cluster::{Cluster, ClusterParts, Links, Node};

/// Node `n0`, `n1`, ...: seconds of a forward, a backward and a loss, and memory in microbatches.
pub fn node(index: usize, [forward_s, backward_s, loss_s]: [f64; 3], memory: u32) -> Node {
    Node { name: format!("n{index}"), forward_s, backward_s, loss_s, memory, processor: None }
}

/// A square matrix; `number` is asked row by row.
pub fn matrix(side: usize, mut number: impl FnMut(usize, usize) -> f64) -> Vec<Vec<f64>> {
    (0..side).map(|i| (0..side).map(|j| number(i, j)).collect()).collect()
}

/// Nodes of equal times and memory, with these transfer times in seconds.
pub fn equal_nodes(times_s: [f64; 3], memory: u32, transfer_s: Vec<Vec<f64>>) -> Cluster {
    let nodes = (0..transfer_s.len()).map(|i| node(i, times_s, memory)).collect();
    Cluster::new(ClusterParts::new(nodes, Links::Transfer(transfer_s)), "").unwrap()
}
