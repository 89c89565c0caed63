//! What tests of several files share.

pub mod job_shop;
