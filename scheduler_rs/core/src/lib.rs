//! Which route each microbatch takes through a pipeline over slow, uneven networks.
//!
//! The data flow: a [`cluster::Cluster`] and an allocation make a [`problem::Problem`]; [`plan()`]
//! answers it with a [`plan::Plan`], whose times the event simulator ([`simulate`]) gives and whose
//! rules [`check::check`] verifies with no code of the search. Terms and rules are those of SkipPipe
//! (arXiv 2502.19913), made exact in the documentation of this project.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod allocate;
pub mod bound;
pub mod budget;
pub mod check;
pub mod cluster;
pub mod contention;
pub mod error;
pub mod explain;
mod format;
pub mod measured;
pub mod part;
pub mod plan;
pub mod problem;
pub mod quotas;
pub mod report;
pub mod request;
pub mod route;
pub mod rules;
pub mod search;
pub mod simulate;
pub mod time;
pub mod upgrade;
pub mod workload;

#[cfg(test)]
extern crate self as skippipe_core;
#[cfg(test)]
#[path = "../tests/common/clusters.rs"]
mod test_clusters;

pub use error::{Error, Result};
pub use search::plan;
