//! A question to conflict-based search, and its answer as a plan.

use std::collections::BTreeMap;

use serde_json::Value;
use skippipe_core::bound::lookahead::Lookahead;
use skippipe_core::budget::Budget;
use skippipe_core::plan::{Assumptions, Microbatch, Plan, PlanFormat, Predicted};
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::report::SearchReport;
use skippipe_core::route::RouteTask;
use skippipe_core::rules::Strategy;
use skippipe_core::search::methods::cbs::{Answer, Solution, Subproblem, VisitDemand, solve};
use skippipe_core::simulate::Simulator;
use skippipe_core::time::{Time, seconds};

pub struct Asked<'a> {
    pub instance: &'a Instance,
    pub tasks: &'a [RouteTask],
    pub demand: &'a VisitDemand,
    pub lookahead: &'a Lookahead,
}

impl Asked<'_> {
    pub fn solve(&self, limit: Time, suboptimality: f64, work_limit: u64) -> Answer {
        let subproblem = Subproblem {
            instance: self.instance,
            tasks: self.tasks,
            demand: self.demand,
            limit,
            suboptimality,
            work_limit,
        };
        solve(&subproblem, self.lookahead, &Budget::new(None, None))
    }
}

/// The execution as a plan, for the checker.
pub fn plan_of(problem: &Problem, instance: &Instance, found: &Solution) -> Plan {
    let mut simulator = Simulator::new(instance);
    simulator.load(&found.microbatches);
    let outcome = simulator.run_order(&found.order).expect("an order that runs");
    assert_eq!(outcome.iteration - instance.epilogue, found.value);
    let microbatch = |b: &skippipe_core::simulate::MicrobatchRoute| Microbatch {
        id: b.id,
        source: b.source,
        nodes: b.nodes.iter().map(|n| *n as usize).collect(),
        stages: b.nodes.iter().map(|n| instance.stage_of[*n as usize]).collect(),
        route: b.route,
        wave: b.wave,
    };
    Plan {
        format: PlanFormat::One,
        cluster: problem.cluster().clone(),
        constraints: problem.constraints().clone(),
        skip_ratio: problem.skip_ratio(),
        strategy: Strategy::Skippipe,
        stages: problem.stages().to_vec(),
        layers: vec![],
        absent_nodes: vec![],
        absent_stages: vec![],
        assumptions: Assumptions::unusual(problem.cluster()),
        model: Value::Null,
        microbatches_per_source: problem.stages()[0]
            .iter()
            .copied()
            .zip(problem.microbatches().iter().copied())
            .collect::<BTreeMap<_, _>>(),
        microbatches: found.microbatches.iter().map(microbatch).collect(),
        tasks: simulator.plan_tasks(&found.order),
        predicted: Predicted {
            iteration_s: seconds(outcome.iteration),
            pipeline_s: seconds(outcome.pipeline),
            allreduce_s: instance.allreduce.iter().map(|t| seconds(*t)).collect(),
            lower_bound_s: 0.0,
            gap: 0.0,
        },
        solver: SearchReport::default(),
    }
}

pub fn lookahead_of(instance: &Instance, demand: &VisitDemand) -> Lookahead {
    Lookahead::new(instance, demand.long, &Budget::new(None, None), 1.0).unwrap()
}
