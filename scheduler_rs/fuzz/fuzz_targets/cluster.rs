//! A text is refused with a message, or is a cluster whose times are times and that reads back as itself.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use skippipe_core::cluster::Cluster;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    skippipe_fuzz::mutate(data, size, max_size, seed)
});

fuzz_target!(|text: &str| {
    let cluster = match Cluster::from_json(text) {
        Ok(cluster) => cluster,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(Cluster::from_json(&cluster.to_json()).as_ref(), Ok(&cluster));
    let nodes = 0..cluster.nodes().len();
    for (from, to) in nodes.clone().zip(nodes.rev()) {
        let seconds = cluster.transfer_s(from, to, cluster.activation_bytes());
        assert!(seconds >= 0.0 && seconds.is_finite(), "{from} -> {to}: {seconds}");
    }
});
