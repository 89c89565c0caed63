//! A plan small enough to be followed by hand: two nodes with room for one microbatch each, two microbatches.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;

use clusters::equal_nodes;
use skippipe_core::budget::Budget;
use skippipe_core::explain::{Explanation, Part, Reason, Waits, explain};
use skippipe_core::plan::Kind;
use skippipe_core::problem::Problem;
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::rules::{Constraints, Strategy};
use skippipe_core::upgrade::{Upgrade, gains};

/// Each microbatch: F 0 to 1, F 1.25 to 2.25, L 2.5 to 3, B 3.25 to 5.25, B 5.5 to 7.5; the second when the first is
/// complete, for node 0 holds no more than one.
fn explanation() -> Explanation {
    let cluster = equal_nodes([1.0, 2.0, 0.5], 1, vec![vec![0.0, 0.25], vec![0.25, 0.0]]);
    let problem = Problem::new(cluster, vec![vec![0], vec![1]], vec![], vec![2], 0.0, Constraints::default()).unwrap();
    let options = Options::new(Strategy::Full, 0);
    explain(&skippipe_core::plan(&PlanRequest::given(problem.clone(), options), &Budget::new(None, Some(100))).unwrap())
        .unwrap()
}

#[test]
fn the_second_microbatch_waits_for_memory() {
    let explained = explanation();
    assert_eq!(explained.plan.predicted.iteration_s, 15.0);
    let find = |microbatch: usize, kind: Kind, hop: usize| {
        explained.plan.tasks.iter().position(|t| (t.microbatch, t.kind, t.hop) == (microbatch, kind, hop)).unwrap()
    };
    let note = &explained.notes[find(1, Kind::F, 0)];
    assert_eq!((note.reason, note.blocker), (Reason::Memory, Some(find(0, Kind::B, 0))));
    assert_eq!(note.waits, Waits { busy_s: 3.5, memory_s: 4.0, order_s: 0.0 });
    assert_eq!(explained.notes[find(1, Kind::F, 1)].reason, Reason::Input);
    assert!(explained.notes.iter().all(|note| note.slack_s == 0.0));
    // The path runs through both microbatches; the last one first waits for its node and for memory.
    assert_eq!(explained.critical.len(), 2 * (5 + 4));
    let first: Vec<Part> = explained.last.iter().take(3).map(|segment| segment.part).collect();
    let task = find(1, Kind::F, 0);
    assert_eq!(first, [Part::Wait(task, Reason::Busy), Part::Wait(task, Reason::Memory), Part::Task(task)]);
}

#[test]
fn what_is_faster_saves_its_share_of_the_path() {
    let explained = explanation();
    let found: Vec<(Upgrade, f64)> = gains(&explained).unwrap().iter().map(|g| (g.upgrade, g.iteration_s)).collect();
    let expected = [
        (Upgrade::Node(0), 11.5),
        (Upgrade::Node(1), 12.0),
        (Upgrade::Both(0, 1), 14.0),
        (Upgrade::Link(0, 1), 14.5),
        (Upgrade::Link(1, 0), 14.5),
    ];
    assert_eq!(found, expected);
}
