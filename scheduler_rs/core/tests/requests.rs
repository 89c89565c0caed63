//! Requests and what answers them: allocations still to be found, what no plan can keep, reports of any origin.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/clusters.rs"]
mod clusters;
#[path = "common/planned.rs"]
mod planned;
#[path = "common/problems.rs"]
mod problems;

use clusters::{equal_nodes, matrix};
use planned::planned;
use problems::{cluster, problems};
use proptest::prelude::*;
use serde_json::{Value, json};
use skippipe_core::allocate::{self, Request};
use skippipe_core::budget::Budget;
use skippipe_core::error::Error;
use skippipe_core::part::Part;
use skippipe_core::plan::Plan;
use skippipe_core::problem::Problem;
use skippipe_core::request::{FirstAllocation, Method, Options, PlanRequest, UnallocatedProblem};
use skippipe_core::rules::{Constraints, MemoryRule, RouteClass, Strategy as PlanStrategy};

const SURROGATE: allocate::Options = allocate::Options { seed: 1, threads: 1, without: None };

fn open(sizes: &[usize], sources: Option<Vec<usize>>, microbatches: Vec<usize>) -> Result<UnallocatedProblem, Error> {
    let numbers: Vec<f64> = (0..40).map(|i| f64::from(i * 37 % 23) / 23.0).collect();
    let request = Request { sizes: sizes.to_vec(), sources, max_replica_transfer_s: None };
    let rules = Constraints { tc1: MemoryRule::Off, ..Constraints::default() };
    UnallocatedProblem::new(cluster(6, 0, &numbers), request, microbatches, 0.25, rules, vec![])
}

fn allocated(asked: &UnallocatedProblem) -> Problem {
    asked.allocate(SURROGATE, &Budget::new(None, Some(1_000))).unwrap().0
}

#[test]
fn the_surrogate_answers_with_a_whole_problem() {
    let asked = open(&[2, 2, 2], Some(vec![5, 1]), vec![3, 1]).unwrap();
    let (problem, found) = asked.allocate(SURROGATE, &Budget::new(None, Some(20_000))).unwrap();
    assert_eq!(problem.stages()[0], [5, 1], "microbatches were given for the sources in this order");
    let mut served = problem.stages().concat();
    served.sort_unstable();
    assert_eq!(served, (0..6).collect::<Vec<_>>());
    for (stage, members) in found.best.stages.iter().enumerate() {
        let mut ours = problem.stages()[stage].clone();
        ours.sort_unstable();
        assert_eq!(&ours, members);
    }
    assert_eq!(problem.skip_ratio(), 0.25);
}

#[test]
fn what_cannot_be_allocated_is_refused_by_key() {
    let cases = [
        (open(&[2, 2, 3], None, vec![1, 1]), "sizes"),
        (open(&[2, 2, 2], Some(vec![1]), vec![1, 1]), "sources"),
        (open(&[2, 2, 2], Some(vec![1, 6]), vec![1, 1]), "sources[1]"),
        (open(&[2, 2, 2], None, vec![1]), "microbatches"),
    ];
    for (asked, key) in cases {
        let error = asked.unwrap_err();
        assert_eq!(error.key(), Some(key), "{error}");
    }
}

#[test]
fn the_same_question_with_other_rules() {
    let asked = open(&[2, 2, 2], None, vec![2, 2]).unwrap();
    let other = Constraints { waves: 2, ..Constraints::default() };
    for first in [FirstAllocation::Given(allocated(&asked)), FirstAllocation::Surrogate(asked.clone())] {
        let changed = first.with(0.5, other.clone()).unwrap();
        assert_eq!((changed.problem().skip_ratio(), changed.problem().constraints().waves), (0.5, 2));
        assert_eq!(changed.problem().stages(), first.problem().stages());
        assert_eq!(first.with(0.9, other.clone()).unwrap_err().key(), Some("skip_ratio"));
    }
}

#[test]
fn ways_to_search_are_found_by_name() {
    assert_eq!((Method::from_name("auto"), Method::from_name("cbs")), (Ok(Method::Auto), Ok(Method::Cbs)));
    assert_eq!(Method::from_name("CBS").unwrap_err().key(), Some("method"));
    let options = Options { without: Some(Part::Order), ..Options::new(PlanStrategy::Skippipe, 0) };
    assert!(!options.has(Part::Order) && options.has(Part::Exchange));
}

#[test]
fn what_no_plan_can_keep_is_refused_by_rule() {
    // Two sources, then two stages of one node each; every node holds two microbatches.
    let planned = |microbatches: [usize; 2], skip_ratio: f64, rules: Constraints| {
        let cluster = equal_nodes([1.0, 2.0, 0.5], 2, matrix(4, |_, _| 0.1));
        let stages = vec![vec![0, 1], vec![2], vec![3]];
        let problem = Problem::new(cluster, stages, vec![], microbatches.to_vec(), skip_ratio, rules).unwrap();
        let request = PlanRequest::given(problem, Options::new(PlanStrategy::Skippipe, 0));
        skippipe_core::plan(&request, &Budget::new(None, Some(2_000)))
    };
    let refused = |microbatches, skip_ratio, rules| match planned(microbatches, skip_ratio, rules) {
        Err(Error::Impossible { rule, .. }) => rule.to_string(),
        other => panic!("{other:?}"),
    };
    let routes = || Constraints { tc1: MemoryRule::Routes, ..Constraints::default() };
    let class = |stages: &[usize], routes| RouteClass { stages: stages.to_vec(), routes };
    assert_eq!(refused([3, 1], 1.0 / 3.0, routes()), "TC1", "a source of more microbatches than it holds");
    assert_eq!(refused([2, 2], 0.0, routes()), "TC1", "a stage on all four routes, its node holds two");
    assert!(planned([2, 2], 1.0 / 3.0, routes()).is_ok(), "each stage on two");
    let short = || Constraints { max_stage_jump: Some(1), ..Constraints::default() };
    assert!(planned([2, 2], 0.0, short()).is_ok());
    assert_eq!(refused([2, 2], 1.0 / 3.0, short()), "CC3", "nothing leads to stage 2 but stage 1");
    let apart = Constraints { classes: Some(vec![class(&[0, 2], 4)]), ..short() };
    assert_eq!(refused([2, 2], 1.0 / 3.0, apart), "max_stage_jump");
    let one = Constraints { profile: Some(vec![1.0, 0.0]), ..Constraints::default() };
    assert!(planned([2, 2], 1.0 / 3.0, one.clone()).is_ok());
    assert_eq!(refused([2, 2], 0.25, one), "profile", "stage 1 cannot take five visits of four routes");
}

/// JSON of any form, at most two deep.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

const LENIENT: [&str; 10] =
    ["wall_s", "seed", "threads", "interrupted", "work", "rounds", "attempts", "events", "statistics", "allocation"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a foreign report says, the plan is read, and says the same when it is written and read again.
    #[test]
    fn reports_of_any_origin_are_read(
        problem in problems(),
        said in prop::collection::vec((prop::sample::select(LENIENT.to_vec()), anything()), 0..4),
        (name, unknown) in ("x_[a-z]{1,4}", anything()),
    ) {
        let plan = planned(&problem, 500)?;
        let mut content: Value = serde_json::from_str(&plan.to_json()).unwrap();
        for (key, value) in &said {
            content["solver"][key] = value.clone();
        }
        content["solver"][&name] = unknown.clone();
        let read = Plan::from_json(&content.to_string()).unwrap();
        prop_assert_eq!(&read.tasks, &plan.tasks);
        prop_assert_eq!(&read.solver.other[&name], &unknown);
        prop_assert_eq!(&Plan::from_json(&read.to_json()).unwrap(), &read);
    }
}

#[test]
fn events_out_of_order_are_none() {
    let problem = allocated(&open(&[2, 2, 2], None, vec![2, 2]).unwrap());
    let plan = planned(&problem, 500).unwrap();
    let read = |key: &str, value: Value| {
        let mut content: Value = serde_json::from_str(&plan.to_json()).unwrap();
        content["solver"][key] = value;
        Plan::from_json(&content.to_string())
    };
    let known = |events: Value| read("events", events).unwrap().solver.events.len();
    assert_eq!(known(json!([[0.0, 1, null, 1.0], [0.5, 3, 2.0, null]])), 2);
    assert_eq!(known(json!([[0.5, 3, 2.0, 1.0], [0.0, 1, null, 1.0]])), 0, "time runs on");
    assert_eq!(known(json!([[0.0, 3, null, 1.0], [0.5, 1, 2.0, 1.0]])), 0, "work is never undone");
    assert_eq!(known(json!([[0.0, 1, -2.0, 1.0]])), 0, "no iteration takes less than nothing");
    assert!(read("optimal", json!("yes")).unwrap_err().to_string().contains("optimal: expected true or false"));
}
