//! A route with the times of its tasks.

use crate::time::Time;

/// A round trip of a microbatch: the nodes of its route and the start of every task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedPath {
    /// Nodes in order of the forward pass.
    pub nodes: Vec<u32>,
    /// Start of each task, `F0 .. F(h-1) L B(h-1) .. B0`.
    pub starts: Vec<Time>,
    /// When it is back at its source.
    pub completion: Time,
    /// What was minimised.
    pub value: Time,
}
