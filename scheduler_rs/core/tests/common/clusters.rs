//! Clusters that tests and benches share.

use skippipe_core::cluster::{Cluster, ClusterParts, Links, Node};

/// Nodes of equal speed (seconds of a forward, a backward and a loss) and memory, with these transfer times in seconds.
pub fn equal_nodes([forward_s, backward_s, loss_s]: [f64; 3], memory: u32, transfer_s: Vec<Vec<f64>>) -> Cluster {
    let node = |i: usize| Node { name: format!("n{i}"), forward_s, backward_s, loss_s, memory };
    let nodes = (0..transfer_s.len()).map(node).collect();
    Cluster::new(ClusterParts::new(nodes, Links::Transfer(transfer_s)), "").unwrap()
}
