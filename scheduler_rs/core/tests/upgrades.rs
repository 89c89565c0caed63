//! Upgrades of random plans: each gains what the simulator says, and nothing else on the cluster gains anything.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/planned.rs"]
mod planned;
#[path = "common/problems.rs"]
mod problems;

use planned::planned;
use problems::problems;
use proptest::prelude::*;
use skippipe_core::explain::{Part, explain};
use skippipe_core::plan::{Kind, Plan};
use skippipe_core::simulate::{Dispatch, resimulate};
use skippipe_core::upgrade::{Gain, Upgrade, gains};

fn on(plan: &Plan, upgrade: Upgrade, dispatch: Dispatch) -> Option<f64> {
    let faster = Plan { cluster: upgrade.of(&plan.cluster), ..plan.clone() };
    resimulate(&faster, dispatch).ok().map(|plan| plan.predicted.iteration_s)
}

/// Every node, every direction of every link, and both of them.
fn all_upgrades(plan: &Plan) -> Vec<Upgrade> {
    let side = plan.cluster.links().side();
    let pairs = (0..side).flat_map(|i| (0..side).map(move |j| (i, j)));
    let links =
        pairs.flat_map(
            |(i, j)| if i < j { vec![Upgrade::Link(i, j), Upgrade::Both(i, j)] } else { vec![Upgrade::Link(i, j)] },
        );
    (0..plan.cluster.nodes().len()).map(Upgrade::Node).chain(links).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gains_are_what_the_simulator_says(problem in problems()) {
        let plan = planned(&problem, 100)?;
        let found = gains(&explain(&plan).unwrap()).unwrap();
        let before = plan.predicted.iteration_s;
        prop_assert!(found.is_sorted_by_key(|gain| gain.iteration_s));
        for upgrade in all_upgrades(&plan) {
            let kept = on(&plan, upgrade, Dispatch::Planned).unwrap();
            match found.iter().find(|gain| gain.upgrade == upgrade) {
                Some(Gain { iteration_s, dispatched_s, .. }) => {
                    prop_assert_eq!(*iteration_s, kept);
                    prop_assert!(kept < before);
                    let ruled = on(&plan, upgrade, Dispatch::Rule);
                    prop_assert_eq!(*dispatched_s, ruled.filter(|ruled| *ruled < kept));
                }
                None => prop_assert!(kept >= before, "{upgrade:?} is missing: {kept} for {before}"),
            }
        }
    }

    #[test]
    fn explanations_account_for_all_of_the_time(problem in problems()) {
        let plan = planned(&problem, 100)?;
        let explained = explain(&plan).unwrap();
        for chain in [&explained.critical, &explained.last] {
            prop_assert_eq!(chain[0].start_s, 0.0);
            prop_assert!(chain.windows(2).all(|pair| (pair[0].end_s - pair[1].start_s).abs() < 1e-6));
            prop_assert!((chain[chain.len() - 1].end_s - plan.predicted.iteration_s).abs() < 1e-6);
        }
        for (task, note) in plan.tasks.iter().zip(&explained.notes) {
            let waits = note.waits.busy_s + note.waits.memory_s + note.waits.order_s;
            prop_assert!((note.arrival_s + waits - task.start_s).abs() < 1e-6, "{task:?} {note:?}");
        }
        // Nothing on a longest chain can be late without making the iteration longer.
        for segment in &explained.critical {
            if let Part::Task(task) = segment.part {
                prop_assert_eq!(explained.notes[task].slack_s, 0.0);
            }
        }
    }

    /// A task that takes longer by its slack, and nothing more, leaves the iteration as it is; by more, it does not.
    #[test]
    fn slack_is_exact(problem in problems(), draw in 0_usize..1000) {
        let plan = planned(&problem, 100)?;
        let explained = explain(&plan).unwrap();
        // A loss of a node with one loss: its time is that of no other task.
        let losses: Vec<usize> = (0..plan.tasks.len()).filter(|i| plan.tasks[*i].kind == Kind::L).collect();
        let alone: Vec<usize> = losses.iter().copied().filter(|i| losses.iter().filter(|j| plan.tasks[**j].node == plan.tasks[*i].node).count() == 1).collect();
        prop_assume!(!alone.is_empty());
        let task = alone[draw % alone.len()];
        let slack = explained.notes[task].slack_s;
        let with = |more: f64| {
            let mut parts = plan.cluster.clone().into_parts();
            parts.nodes[plan.tasks[task].node].loss_s += more;
            let cluster = skippipe_core::cluster::Cluster::new(parts, "").unwrap();
            resimulate(&Plan { cluster, ..plan.clone() }, Dispatch::Planned).unwrap().predicted.iteration_s
        };
        prop_assert!((with(slack) - plan.predicted.iteration_s).abs() < 1e-6, "{slack}");
        prop_assert!((with(slack + 0.5) - plan.predicted.iteration_s - 0.5).abs() < 1e-6, "{slack}");
    }
}
