//! The extension module `skippipe._scheduler`: conversion, GIL and signals only. What is decided is decided in
//! `skippipe-core`.

mod allocate;
mod arrays;
mod cluster;
mod errors;
mod explain;
mod plan;
mod problem;
mod report;
mod request;
mod search;
mod strategy;
mod waiting;

use pyo3::prelude::*;

/// Scheduler of skippipe: clusters, problems and plans; planning, simulation and checking.
#[pymodule]
mod _scheduler {
    #[pymodule_export]
    use crate::allocate::{Allocated, Scored, allocate, greedy_allocation, score_allocation};
    #[pymodule_export]
    use crate::cluster::Cluster;
    #[pymodule_export]
    use crate::explain::{Explanation, Segment, Upgrade, explain, upgrades};
    #[pymodule_export]
    use crate::plan::{Assumptions, Microbatch, Plan, Predicted, Task};
    #[pymodule_export]
    use crate::problem::{Constraints, Problem};
    #[pymodule_export]
    use crate::report::{AllocationReport, LeftOut, RunnerUp, SearchEvent, SearchReport};
    #[pymodule_export]
    use crate::request::{AllocationScope, PlanRequest};
    #[pymodule_export]
    use crate::search::{benchmark_simulator, first_allocation, plan, simulate};
    #[pymodule_export]
    use crate::strategy::{is_full, is_joint, is_random, strategies};
}
