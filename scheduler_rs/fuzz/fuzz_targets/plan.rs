//! A text is refused with a message, or is a plan that reads back as itself; one that keeps all rules can be executed.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use skippipe_core::check::check;
use skippipe_core::plan::Plan;
use skippipe_core::simulate::{Dispatch, resimulate};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    skippipe_fuzz::mutate(data, size, max_size, seed)
});

fuzz_target!(|text: &str| {
    let plan = match Plan::from_json(text) {
        Ok(plan) => plan,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(Plan::from_json(&plan.to_json()).as_ref(), Ok(&plan));
    if check(&plan).is_empty() {
        let again = resimulate(&plan, Dispatch::Planned).expect("what keeps all rules has no deadlock");
        assert!(again.predicted.iteration_s <= plan.predicted.iteration_s + 1e-6, "tasks start as early as they can");
    }
});
