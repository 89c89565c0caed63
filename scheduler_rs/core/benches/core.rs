//! Inner loops.
fn main() {}
