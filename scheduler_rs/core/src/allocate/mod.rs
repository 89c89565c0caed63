//! Which node serves which stage.

mod greedy;
pub mod joint;

pub use greedy::greedy;
