//! From the end of a search to a plan.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bound::is_tight;
use crate::budget::Budget;
use crate::error::Result;
use crate::plan::{Assumptions, Microbatch, Plan, PlanFormat, Predicted};
use crate::problem::{Instance, Problem};
use crate::request::Options;
use crate::search::context::Solution;
use crate::simulate::{MicrobatchRoute, Simulator};
use crate::time::{Time, seconds};
use crate::workload::Workload;

/// Simulates the solution once more and writes it down.
pub fn assemble(
    problem: &Problem,
    instance: &Instance,
    options: Options,
    budget: &Budget,
    solution: Solution,
) -> Result<Plan> {
    let Solution { microbatches, order, bound, mut report } = solution;
    let mut simulator = Simulator::new(instance);
    simulator.load(&microbatches);
    let outcome = simulator.run_order(&order).map_err(|deadlock| simulator.error_of(&deadlock))?;
    let iteration_s = seconds(outcome.iteration);
    debug_assert!(bound <= outcome.iteration + 2 * simulator.task_count() as Time, "a bound above a plan");
    // Two roundings apart, a proof can miss by some nanoseconds; the plan's own time is a bound no lower.
    let lower_bound_s = seconds(bound).min(iteration_s);
    let optimal = is_tight(outcome.iteration, bound) && !options.strategy.is_bound_by_routes();
    report.wall_s = Some(budget.elapsed_s());
    report.seed = Some(options.seed);
    report.threads = Some(options.threads);
    report.optimal = Some(optimal);
    let predicted = Predicted {
        iteration_s,
        pipeline_s: seconds(outcome.pipeline),
        allreduce_s: instance.allreduce.iter().map(|t| seconds(*t)).collect(),
        lower_bound_s,
        gap: Predicted::gap_of(iteration_s, lower_bound_s),
    };
    Ok(Plan {
        format: PlanFormat::One,
        cluster: problem.cluster().clone(),
        constraints: problem.constraints().clone(),
        skip_ratio: problem.skip_ratio(),
        strategy: options.strategy,
        stages: problem.stages().to_vec(),
        layers: problem.layers().to_vec(),
        absent_nodes: problem.absent_nodes(),
        absent_stages: problem.absent_stages().to_vec(),
        assumptions: Assumptions::unusual(problem.cluster()),
        model: problem.cluster().workload().map_or(Value::Null, Workload::model),
        microbatches_per_source: problem.stages()[0]
            .iter()
            .copied()
            .zip(problem.microbatches().iter().copied())
            .collect::<BTreeMap<_, _>>(),
        microbatches: plan_microbatches(instance, &microbatches),
        tasks: simulator.plan_tasks(&order),
        predicted,
        solver: report,
    })
}

fn plan_microbatches(instance: &Instance, microbatches: &[MicrobatchRoute]) -> Vec<Microbatch> {
    microbatches
        .iter()
        .enumerate()
        .map(|(id, microbatch)| Microbatch {
            id,
            source: microbatch.source,
            nodes: microbatch.nodes.iter().map(|n| *n as usize).collect(),
            stages: microbatch.nodes.iter().map(|n| instance.stage_of[*n as usize]).collect(),
            route: microbatch.route,
            wave: microbatch.wave,
        })
        .collect()
}
