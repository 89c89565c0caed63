//! The checker: what the planner makes passes, and every single change that breaks a rule is seen.
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
use skippipe_core::check::{check, deadlock};
use skippipe_core::plan::{Kind, Plan};

/// Moves a task by so many seconds.
fn shift(plan: &mut Plan, task: usize, by_s: f64) {
    plan.tasks[task].start_s += by_s;
    plan.tasks[task].end_s += by_s;
}

/// Changes of a plan each of which breaks a rule, by the words of the complaint.
fn broken(plan: &Plan, draw: usize) -> Vec<(&'static str, Plan)> {
    let mut all = Vec::new();
    let task = draw % plan.tasks.len();
    let microbatch = draw % plan.microbatches.len();
    let mut add = |words, change: &dyn Fn(&mut Plan)| {
        let mut other = plan.clone();
        change(&mut other);
        all.push((words, other));
    };
    add("lasts", &|plan| plan.tasks[task].end_s += 0.01);
    add("occurs twice", &|plan| plan.tasks.push(plan.tasks[task].clone()));
    add("F and B once a hop and L once", &|plan| {
        plan.tasks.remove(task);
    });
    add("repeats", &|plan| {
        let mut copy = plan.microbatches[microbatch].clone();
        copy.route += 1000;
        plan.microbatches.push(copy);
    });
    add("are stated", &|plan| *plan.microbatches_per_source.values_mut().next().unwrap() += 1);
    add("its nodes serve", &|plan| {
        let stages = &mut plan.microbatches[microbatch].stages;
        stages[0] = if stages[0] == 0 { 1 } else { 0 };
    });
    add("skip ratio", &|plan| {
        let stages = plan.stages.len();
        let is_full = plan.microbatches.iter().all(|microbatch| microbatch.nodes.len() == stages);
        plan.skip_ratio = if is_full { (stages as f64 - 1.0) / stages as f64 } else { 0.0 };
    });
    add("serves stages", &|plan| {
        let node = plan.stages[0][0];
        plan.stages[1].push(node);
    });
    add("serves no stage", &|plan| {
        let node = plan.microbatches[microbatch].nodes[0];
        plan.stages.iter_mut().for_each(|members| members.retain(|member| *member != node));
    });
    add("iteration_s", &|plan| plan.predicted.iteration_s += 0.01);
    add("pipeline_s", &|plan| plan.predicted.pipeline_s += 0.01);
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_broken_rule_is_named(problem in problems(), draw in 0_usize..1000) {
        let plan = planned(&problem, 100)?;
        prop_assert_eq!(check(&plan), Vec::<String>::new());
        for (words, other) in broken(&plan, draw) {
            let found = check(&other);
            prop_assert!(found.iter().any(|text| text.contains(words)), "{words}: {found:?}");
        }
    }

    /// The simulator starts every task as early as order, memory and messages allow.
    #[test]
    fn no_task_can_start_earlier(problem in problems()) {
        let plan = planned(&problem, 100)?;
        for task in 0..plan.tasks.len() {
            let mut other = plan.clone();
            shift(&mut other, task, -0.001);
            prop_assert_ne!(check(&other), Vec::<String>::new(), "{:?}", plan.tasks[task]);
        }
    }

    /// A backward that stands before its own forward on a node waits for itself.
    #[test]
    fn orders_that_cannot_be_executed_are_found(problem in problems(), draw in 0_usize..1000) {
        let plan = planned(&problem, 100)?;
        prop_assert_eq!(deadlock(&plan), None);
        let forward = plan.tasks.iter().position(|t| t.kind == Kind::F && t.microbatch == plan.microbatches[draw % plan.microbatches.len()].id).unwrap();
        let of = |t: &skippipe_core::plan::Task| (t.microbatch, t.kind, t.hop);
        let (microbatch, _, hop) = of(&plan.tasks[forward]);
        let backward = plan.tasks.iter().position(|t| of(t) == (microbatch, Kind::B, hop)).unwrap();
        let mut other = plan.clone();
        other.tasks.swap(forward, backward);
        let cycle = deadlock(&other).unwrap();
        prop_assert!(cycle.contains(" waits for "), "{cycle}");
        let names: Vec<&str> = cycle.split(" waits for ").collect();
        prop_assert_eq!(names.first(), names.last());
    }
}
