//! What is asked: problems that contradict themselves, rounding of times, budgets.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/problems.rs"]
mod problems;

use std::time::Duration;

use clusters::{equal_nodes, matrix};
use problems::problems;
use proptest::prelude::*;
use skippipe_core::budget::Budget;
use skippipe_core::error::Error;
use skippipe_core::problem::{Instance, Problem, check_absent_nodes};
use skippipe_core::rules::{Constraints, RouteClass, Strategy as PlanStrategy};
use skippipe_core::time::{Rounding, Time, seconds};

/// Stages, absent stages, microbatches, skip ratio and rules of a problem on four nodes.
type Asked = (Vec<Vec<usize>>, Vec<usize>, Vec<usize>, f64, Constraints);

/// What makes it contradict itself.
type Change<'a> = &'a dyn Fn(&mut Asked);

fn asked() -> Asked {
    (vec![vec![0, 1], vec![2], vec![3]], vec![], vec![2, 2], 1.0 / 3.0, Constraints::default())
}

fn problem((stages, absent, microbatches, skip_ratio, rules): Asked) -> Result<Problem, Error> {
    let cluster = equal_nodes([1.0, 2.0, 0.5], 4, matrix(4, |_, _| 0.1));
    Problem::new(cluster, stages, absent, microbatches, skip_ratio, rules)
}

#[test]
fn contradictions_are_refused_by_key() {
    assert!(problem(asked()).is_ok());
    let class = |stages: &[usize], routes| RouteClass { stages: stages.to_vec(), routes };
    let cases: [(&str, Change); 20] = [
        ("stages[1][0]", &|asked| asked.0[1] = vec![4]),
        ("stages[2][0]", &|asked| asked.0[2] = vec![2]),
        ("stages[1]", &|asked| asked.0[1] = vec![]),
        ("stages[1]", &|asked| asked.1 = vec![1]),
        ("microbatches", &|asked| asked.2 = vec![4]),
        ("microbatches", &|asked| asked.2 = vec![0, 0]),
        ("microbatches", &|asked| asked.2 = vec![20_000, 1]),
        ("skip_ratio", &|asked| asked.3 = 0.7),
        ("skip_ratio", &|asked| asked.3 = -0.1),
        ("skip_ratio", &|asked| asked.3 = f64::NAN),
        ("constraints.waves", &|asked| asked.4.waves = 0),
        ("constraints.max_stage_jump", &|asked| asked.4.max_stage_jump = Some(0)),
        ("constraints.profile", &|asked| asked.4.profile = Some(vec![1.0])),
        ("constraints.profile[1]", &|asked| asked.4.profile = Some(vec![1.0, -1.0])),
        ("constraints.classes", &|asked| asked.4.classes = Some(vec![])),
        ("constraints.classes", &|asked| asked.4.classes = Some(vec![class(&[0, 1], 3)])),
        ("constraints.classes[0].stages", &|asked| asked.4.classes = Some(vec![class(&[1, 2], 4)])),
        ("constraints.classes[0].stages[1]", &|asked| asked.4.classes = Some(vec![class(&[0, 3], 4)])),
        ("constraints.classes[0].stages[2]", &|asked| asked.4.classes = Some(vec![class(&[0, 1, 1], 4)])),
        ("skip_ratio", &|asked| asked.4.classes = Some(vec![class(&[0, 1, 2], 4)])),
    ];
    for (i, (key, change)) in cases.into_iter().enumerate() {
        let mut other = asked();
        change(&mut other);
        let error = problem(other).unwrap_err();
        assert_eq!(error.key(), Some(key), "case {i}: {error}");
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(": expected "), "{error}");
    }
}

#[test]
fn absent_nodes_are_those_that_serve_nothing() {
    let mut other = asked();
    other.0[0] = vec![0];
    other.2 = vec![4];
    let problem = problem(other).unwrap();
    assert_eq!(problem.absent_nodes(), [1]);
    assert!(check_absent_nodes(&problem, &[1]).is_ok());
    for (wrong, key) in [(vec![2], "absent_nodes[0]"), (vec![1, 1], "absent_nodes[1]"), (vec![], "stages")] {
        assert_eq!(check_absent_nodes(&problem, &wrong).unwrap_err().key(), Some(key), "{wrong:?}");
    }
}

#[test]
fn strategies_are_found_by_name() {
    for strategy in PlanStrategy::ALL {
        assert_eq!(PlanStrategy::from_name(strategy.name()), Ok(strategy));
    }
    assert!(PlanStrategy::from_name("greedy").unwrap_err().to_string().contains("one of full, full-routed"));
}

proptest! {
    /// Plans round times up, bounds round them down; both are within a nanosecond.
    #[test]
    fn instances_round_to_either_side(problem in problems()) {
        let cluster = problem.cluster();
        let (up, down) = (Instance::new(&problem, Rounding::Up), Instance::new(&problem, Rounding::Down));
        let check = |down: Time, exact: f64, up: Time| {
            let (low, high) = (seconds(down), seconds(up));
            prop_assert!(down <= up && up - down <= 1 && low <= exact + 1e-12 && exact <= high + 1e-12, "{low} {exact} {high}");
            Ok(())
        };
        for (i, node) in cluster.nodes().iter().enumerate() {
            check(down.forward(0, i), node.forward_s, up.forward(0, i))?;
            check(down.backward(0, i), node.backward_s, up.backward(0, i))?;
            check(down.loss(0, i), node.loss_s, up.loss(0, i))?;
            for j in 0..cluster.nodes().len() {
                let exact = cluster.transfer_s(i, j, cluster.activation_bytes());
                check(down.transfer(i, j), exact, up.transfer(i, j))?;
            }
            prop_assert_eq!(up.transfer(i, i), 0);
        }
        for (stage, members) in problem.stages().iter().enumerate() {
            check(down.allreduce[stage], cluster.allreduce_s(stage, members), up.allreduce[stage])?;
        }
    }
}

#[test]
fn budgets_of_parts_end_with_the_whole() {
    let whole = Budget::new(None, Some(1_000));
    let (share, apart, step) = (whole.share(0.5, 200), whole.apart(None, None), whole.within(30));
    assert_eq!((share.work_limit, apart.work_limit, step.work_limit), (Some(400), None, Some(30)));
    assert_eq!((whole.round_work(100), share.round_work(100), step.round_work(100)), (100, 100, 30));
    assert_eq!((whole.gone(), whole.is_past(0.0)), (0.0, false), "no clock");
    share.add_work(7);
    share.report(2.0, 1.0);
    let told = whole.progress();
    assert_eq!((told.work, told.incumbent_s, told.bound_s), (7, 2.0, 1.0));
    apart.add_work(5);
    assert_eq!(whole.progress().work, 7);
    assert!(![&whole, &share, &apart, &step].iter().any(|budget| budget.is_over()));
    share.cancel();
    for budget in [&whole, &share, &apart, &step] {
        assert!(budget.is_cancelled() && budget.is_over());
        assert_eq!(budget.check_cancelled(), Err(Error::Cancelled));
    }
    assert!(Budget::new(Some(Duration::ZERO), None).is_over());
    assert!(Budget::new(Some(Duration::from_secs(1000)), None).share(0.0, 0).is_over());
}
