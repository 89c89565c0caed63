//! Conflict-based search against an exhaustive one that knows the rules alone: every choice of routes, every order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/clusters.rs"]
mod clusters;

mod asked;
mod exhaustive;
mod instances;
mod many_paths;
mod optimum;
mod relaxation;
mod routes;
