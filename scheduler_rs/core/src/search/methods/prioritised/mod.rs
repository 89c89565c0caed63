//! Prioritised planning: routes are placed one after the other, each by the best path among the reservations of those
//! before it.

pub mod construct;
pub mod partial_schedule;
pub mod router;
#[cfg(test)]
mod router_tests;
pub mod timed_path;
pub mod timeline;
