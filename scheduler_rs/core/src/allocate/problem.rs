//! What is to be allocated, as the search sees it.

use super::costs::Costs;

/// The allocation to find.
#[derive(Clone, Copy, Debug)]
pub struct AllocationProblem<'a> {
    /// Transfer and compute times of the cluster.
    pub costs: &'a Costs,
    /// Nodes of each stage, stage 0 first.
    pub sizes: &'a [usize],
    /// The nodes of stage 0, ascending; none where they are to be chosen.
    pub sources: Option<&'a [usize]>,
    /// Upper bound on the diameter of a stage, in seconds.
    pub limit_s: f64,
}
