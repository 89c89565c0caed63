//! Which node serves which stage.

mod greedy;

pub use greedy::greedy;
