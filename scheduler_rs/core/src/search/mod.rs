//! From a problem to a plan: the five strategies, and the rounds of attempts that improve on each other.

mod anneal;
mod assign;
mod attempt;
mod board;
pub mod cbs;
mod draw;
mod estimate;
mod full_routed;
mod idle;
mod joint;
mod journal;
#[cfg(test)]
mod local_tests;
pub mod order;
pub mod outlook;
mod portfolio;
mod proof;
mod race;
mod router;
#[cfg(test)]
mod router_tests;
mod routes;
mod sequence;
mod shares;
mod straight;
mod strategy_allocation;
mod sweep;
mod timeline;

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand_pcg::Pcg64;
use serde_json::{Map, Value, json};

use crate::allocate::joint::Freedom;
use crate::bound::{is_tight, lower_bound_of, route_bound};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::plan::{Microbatch, Plan, Predicted};
use crate::problem::{Instance, Problem, impossible};
use crate::route::{Lengths, RouteTask, StageOrder, StageSet, route_tasks};
use crate::rules::{Constraints, MemoryRule, Strategy};
use crate::simulate::{Batch, Outcome, Simulator, TaskId};
use crate::time::{NEVER, Rounding, Time, seconds};
use crate::workload::Workload;

use outlook::Outlook;
use routes::Ground;
use shares::{Shares, share_visits};
use sweep::{Sweep, iteration_of};

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What to plan by.
    pub strategy: Strategy,
    /// Same seed and work limit: same plan, whatever the number of threads.
    pub seed: u64,
    /// At least 1.
    pub threads: usize,
    /// How plans are looked for.
    pub method: Method,
    /// With [`Method::Cbs`], at least 1: a plan that takes at most so many times the bound will do.
    pub suboptimality: f64,
}

/// How plans are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Everything there is, side by side.
    #[default]
    Auto,
    /// Conflict-based search alone, until the proof.
    Cbs,
}

impl Options {
    /// Everything there is, on one thread.
    #[must_use]
    pub fn new(strategy: Strategy, seed: u64) -> Self {
        Self { strategy, seed, threads: 1, method: Method::Auto, suboptimality: 1.0 }
    }
}

/// A search that has looked through everything and found nothing.
fn nothing_exists<T>() -> Result<T> {
    impossible(
        "CC1 to CC3 and TC1",
        "all choices of routes and orders have been looked through, none keeps all of them".to_owned(),
    )
}

/// What attempts are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Objective {
    /// The simulated iteration.
    Simulated,
    /// The longest travel (no TC2).
    Travel,
}

/// What all attempts of one search share.
#[derive(Clone, Copy)]
struct Context<'a> {
    instance: &'a Instance,
    tasks: &'a [RouteTask],
    outlook: &'a Outlook,
    budget: &'a Budget,
    objective: Objective,
    seed: u64,
    /// Stage sets that meet all quotas, where `max_stage_jump` makes that a question.
    sets: Option<&'a [StageSet]>,
}

impl<'a> Context<'a> {
    fn ground(&self) -> Ground<'a> {
        Ground { instance: self.instance, tasks: self.tasks }
    }

    /// Quotas and lengths of one attempt.
    fn targets(&self, rng: &mut Pcg64) -> board::Targets {
        match self.sets {
            Some(sets) if rand::RngExt::random_bool(rng, 0.5) => draw::dealt(self.instance, sets, rng),
            _ => draw::targets(self.instance, self.tasks, rng),
        }
    }

    /// The random numbers of one attempt.
    fn rng(&self, stream: u64) -> Pcg64 {
        stream_of(self.seed, stream)
    }
}

/// One of many independent streams of random numbers for a seed.
fn stream_of(seed: u64, stream: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The end of a search: an execution and what is known of it.
struct Solution {
    batches: Vec<Batch>,
    order: Vec<Vec<TaskId>>,
    /// Lower bound in nanoseconds, on durations rounded down.
    bound: Time,
    statistics: Map<String, Value>,
}

/// Draws after which `random-skip` gives up.
const MOST_DRAWS: u64 = 1000;

/// The best plan found for `problem` within `budget`.
///
/// `full` and `full-routed` run every stage; `full` keeps TC1 `held`, and every microbatch has a route number
/// of its own.
///
/// # Errors
/// [`Error::Impossible`] with the rule where no plan can exist, [`Error::NotFound`] where none was found,
/// [`Error::Lockup`] where the dispatch rule locks up, [`Error::Cancelled`].
pub fn plan_for(problem: &Problem, options: Options, budget: &Budget) -> Result<Plan> {
    plan_from(problem, options, budget, None)
}

fn plan_from(problem: &Problem, options: Options, budget: &Budget, start: Option<&Start>) -> Result<Plan> {
    let problem = asked_of(problem, options.strategy)?;
    let instance = Instance::new(&problem, Rounding::Up);
    let tasks = route_tasks(&instance);
    let sets = prove_possible(&instance, &tasks)?;
    let sets = sets.as_deref();
    let below = Instance::new(&problem, Rounding::Down);
    let solution = match options.strategy {
        Strategy::Full => solve_full(&problem, &instance, options, budget),
        Strategy::RandomSkip => solve_random(&instance, &below, &tasks, sets, options, budget),
        Strategy::FullRouted | Strategy::SkippipeNoTc2 | Strategy::Skippipe => {
            portfolio::solve(&instance, &below, &tasks, sets, options, budget, start)
        }
    }?;
    assemble(&problem, &instance, options, budget, solution)
}

/// The best plan found for `problem` or for another allocation that `freedom` allows, within `budget`.
///
/// For `skippipe` and `full-routed` under TC2 allocation, routes and order are searched together; the other strategies
/// make their plans of an allocation, and are searched for the one that suits them best. A problem with absent stages
/// keeps its allocation.
///
/// # Errors
/// As [`plan_for`].
pub fn plan_freely(problem: &Problem, freedom: Freedom, options: Options, budget: &Budget) -> Result<Plan> {
    let asked = asked_of(problem, options.strategy)?;
    if !asked.absent_stages().is_empty() {
        return plan_for(problem, options, budget);
    }
    // Where nothing is averaged, a node costs nothing in any stage.
    let unused = freedom.unused && !asked.cluster().gradient_bytes().is_empty();
    let freedom = Freedom { unused, ..freedom };
    let is_joint = matches!(options.strategy, Strategy::FullRouted | Strategy::Skippipe) && asked.constraints().tc2;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|error| Error::NotFound(format!("threads could not be started: {error}")))?;
    pool.install(|| {
        if full_routed::has_straight(&asked, freedom, options) {
            full_routed::plan(&asked, freedom, options, budget)
        } else if is_joint {
            Freely { problem, asked: &asked, freedom, options, budget }.plan()
        } else {
            strategy_allocation::plan(&asked, freedom, options, budget)
        }
    })
}

/// The plan that says what its absent nodes would cost.
fn told_left_out(mut plan: Plan) -> Plan {
    let left_out = idle::explained(&plan);
    let told = plan.solver.entry("allocation").or_insert_with(|| Value::Object(Map::new()));
    if let Some(told) = told.as_object_mut() {
        told.insert("left_out".to_owned(), Value::Array(left_out));
    }
    plan
}

/// How much of the time or the work goes into allocations; the rest is for the best of them.
const SHARE: f64 = 0.6;
/// How much of it where nothing is left to do for the best allocation.
const LATE_SHARE: f64 = 0.95;
/// How much of it before all allocations of a small cluster are looked at one by one; where they race, when the first
/// runs end, and the race.
const SHARE_OF_SMALL: f64 = 0.15;
const FIRST_RUNS: f64 = 0.25;
const SHARE_OF_RACE: f64 = 0.5;
/// With no more tasks than these an allocation has its proof before a race would begin.
const FEW_TASKS: usize = 48;

/// Tasks of an iteration, about.
fn task_count(problem: &Problem) -> usize {
    let instance = Instance::new(problem, Rounding::Up);
    let lengths = Lengths::new(route_tasks(&instance).len(), instance.present.len(), instance.skip_ratio);
    problem.microbatch_count() * (2 * lengths.short() + 1)
}

/// See [`plan_freely`].
#[derive(Clone, Copy)]
struct Freely<'a> {
    problem: &'a Problem,
    /// As the strategy understands it.
    asked: &'a Problem,
    freedom: Freedom,
    options: Options,
    budget: &'a Budget,
}

impl Freely<'_> {
    fn plan(self) -> Result<Plan> {
        let Self { asked, freedom, options, budget, .. } = self;
        let is_small = sweep::is_small(asked, freedom);
        let is_race = is_small && task_count(asked) > FEW_TASKS;
        let shares = if is_small { (SHARE_OF_SMALL, SHARE_OF_SMALL) } else { (SHARE, LATE_SHARE) };
        let mut joint = joint::search(asked, freedom, options, budget, shares)?;
        let mut sweep = match is_small.then(|| Sweep::new(asked, freedom, budget)).transpose() {
            Err(Error::Cancelled) if joint.is_some() => None,
            sweep => sweep?,
        };
        let most = |share: f64, spent: u64| {
            budget.work_limit.map_or(u64::MAX, |limit| ((limit as f64 * share) as u64).saturating_sub(spent))
        };
        if let Some(joint) = joint.as_mut().filter(|_| is_race) {
            self.race(joint, sweep.as_ref(), most(SHARE_OF_RACE, joint.work));
        }
        let known = joint.as_ref().map_or(NEVER, |joint| joint.found.key.0);
        if let Some(sweep) = sweep.as_mut().filter(|_| !is_race || joint.is_none()) {
            sweep.advance(known, options, budget, SHARE, most(SHARE, joint.as_ref().map_or(0, |joint| joint.work)));
            if let Some(error) = sweep.impossible(known) {
                return Err(error.clone());
            }
        }
        budget.begin_part();
        let (mut plan, mut is_swept) = match (&joint, sweep.as_mut().and_then(|sweep| sweep.plan.take())) {
            // Planned by itself, and better than what changed together with the allocation.
            (_, Some(plan)) if iteration_of(&plan) < known => (plan, true),
            (Some(joint), _) => (self.go_on(joint, sweep.as_ref())?, false),
            (None, _) => (self.without_start()?, false),
        };
        if let Some(sweep) = &mut sweep {
            // Time is left where the plan is proved to be the best of its own allocation.
            let told = plan.solver.get("work").and_then(Value::as_u64).unwrap_or(0);
            let spent = told.max(joint.as_ref().map_or(0, |joint| joint.work) + sweep.work);
            let left = most(1.0, spent);
            sweep.advance(iteration_of(&plan), options, budget, 1.0, left.saturating_add(sweep.work));
            if let Some(better) = sweep.plan.take() {
                (plan, is_swept) = (better, true);
            }
        }
        if freedom.unused {
            let iteration = iteration_of(&plan);
            let bound = joint.as_ref().map_or(0, |joint| joint.bound);
            let bound = sweep.as_ref().map_or(bound, |sweep| bound.max(sweep.bound(iteration)));
            plan = idle::without_idle(plan, bound, budget)?;
        }
        self.tell(&mut plan, is_swept, joint, sweep.as_ref());
        if freedom.unused {
            plan = told_left_out(plan);
        }
        Ok(plan)
    }

    /// Has the allocations that were seen race with all others, where these are few; the winner is the best one then.
    fn race(self, joint: &mut joint::Joint, sweep: Option<&Sweep>, most: u64) {
        let Self { asked, options, budget, .. } = self;
        let known = joint.found.key.0;
        if is_tight(known, joint.bound) {
            return;
        }
        let bound_of = |problem: &Problem| lower_bound_of(problem, &budget.within(u64::MAX)).unwrap_or(0);
        let seen = joint.seen.iter().filter_map(|stages| asked.reallocated(stages.clone()).ok());
        let mut entered: Vec<(Problem, Time)> = seen
            .map(|problem| {
                let bound = bound_of(&problem);
                (problem, bound)
            })
            .collect();
        let seen = |problem: &Problem| joint.seen.iter().any(|stages| joint::is_same(stages, problem.stages()));
        entered.extend(sweep.into_iter().flat_map(Sweep::entries).filter(|(problem, _)| !seen(problem)));
        let Some(raced) = race::race(entered, known, options, budget, (FIRST_RUNS, SHARE_OF_RACE), most) else {
            return;
        };
        joint.work += raced.work;
        if raced.found.key < joint.found.key {
            let iteration = seconds(raced.found.key.0);
            if raced.found.key.0 < known {
                joint.events.push(json!([budget.elapsed_s(), joint.work, iteration, seconds(joint.bound)]));
                budget.report(iteration, seconds(joint.bound));
            }
            (joint.problem, joint.found) = (raced.problem, raced.found);
        }
    }

    /// Goes on with the best allocation as it stands.
    fn go_on(self, joint: &joint::Joint, sweep: Option<&Sweep>) -> Result<Plan> {
        let work = joint.work + sweep.map_or(0, |sweep| sweep.work);
        let bound = sweep.map_or(joint.bound, |sweep| joint.bound.max(sweep.bound(joint.found.key.0)));
        let start = Start { found: joint.found.clone(), work, bound };
        plan_from(&joint.problem, self.options, self.budget, Some(&start))
    }

    /// That there is no plan for the first allocation says nothing of the others.
    fn without_start(self) -> Result<Plan> {
        plan_for(self.problem, self.options, self.budget).map_err(|error| match error {
            Error::Impossible { rule, reason } => Error::NotFound(format!(
                "no allocation was found that has a plan; for the first one {rule} cannot hold: {reason}"
            )),
            other => other,
        })
    }

    /// Writes down how the allocation was found.
    fn tell(self, plan: &mut Plan, is_swept: bool, joint: Option<joint::Joint>, sweep: Option<&Sweep>) {
        let iteration = iteration_of(plan);
        let bound = joint.as_ref().map_or(0, |joint| joint.bound);
        let bound = sweep.map_or(bound, |sweep| bound.max(sweep.bound(iteration)));
        let swept = sweep.map_or(0, |sweep| sweep.work);
        let mut told = Map::new();
        if let Some(mut joint) = joint {
            joint.compare(plan, iteration);
            let own =
                plan.solver.get_mut("events").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
            let last = [seconds(iteration), plan.predicted.lower_bound_s];
            let mut events = joint.events;
            if is_swept {
                // The plan of an allocation by itself has a clock of its own.
                events.push(json!([self.budget.elapsed_s(), joint.work + swept, last[0], last[1]]));
                plan.solver.insert("work".to_owned(), json!(joint.work + swept));
            } else {
                events.extend(own);
            }
            plan.solver.insert("events".to_owned(), Value::Array(events));
            told = joint.told;
        }
        told.insert("lower_bound_s".to_owned(), json!(seconds(bound).min(plan.predicted.iteration_s)));
        told.insert("planned_one_by_one".to_owned(), json!(sweep.is_some()));
        plan.solver.insert("allocation".to_owned(), Value::Object(told));
        plan.solver.insert("wall_s".to_owned(), json!(self.budget.elapsed_s()));
    }
}

/// What a search begins with.
struct Start {
    found: anneal::Found,
    /// Search steps that it took.
    work: u64,
    /// No plan takes less.
    bound: Time,
}

/// The problem as the strategy understands it.
fn asked_of(problem: &Problem, strategy: Strategy) -> Result<Problem> {
    let rules = problem.constraints().clone();
    match strategy {
        Strategy::Full => problem.with(0.0, Constraints { tc1: MemoryRule::Held, waves: 1, ..rules }),
        Strategy::FullRouted => problem.with(0.0, rules),
        Strategy::SkippipeNoTc2 => problem.with(problem.skip_ratio(), Constraints { tc2: false, ..rules }),
        Strategy::RandomSkip | Strategy::Skippipe => Ok(problem.clone()),
    }
}

/// Refuses what cannot have a plan, with the rule and the figures. Gives stage sets of the routes where
/// `max_stage_jump` makes it a question whether there are any.
fn prove_possible(instance: &Instance, tasks: &[RouteTask]) -> Result<Option<Vec<StageSet>>> {
    let lengths = Lengths::new(tasks.len(), instance.present.len(), instance.skip_ratio);
    let rules = &instance.rules;
    for length in [lengths.short(), lengths.long()] {
        if !some_order(instance, StageOrder::start(rules), 0, length) {
            return impossible(
                "max_stage_jump",
                format!(
                    "no stage order of {length} of the stages {:?} keeps max_stage_jump = {}",
                    instance.present,
                    rules.max_stage_jump.unwrap_or_default()
                ),
            );
        }
    }
    prove_memory(instance, tasks, &lengths)?;
    if !rules.cc3 || rules.max_stage_jump.is_none() {
        return Ok(None);
    }
    match share_visits(instance, &lengths) {
        Shares::Sets(sets) => Ok(Some(sets)),
        Shares::Unknown => Ok(None),
        Shares::None => impossible(
            "CC3",
            format!(
                "no choice of {} routes with {} stage visits in all and jumps of at most {} shares the visits out evenly",
                lengths.routes,
                lengths.total,
                rules.max_stage_jump.unwrap_or_default()
            ),
        ),
    }
}

/// TC1 `routes` is a matter of counting.
fn prove_memory(instance: &Instance, tasks: &[RouteTask], lengths: &Lengths) -> Result<()> {
    let rules = &instance.rules;
    if rules.tc1 != MemoryRule::Routes {
        return Ok(());
    }
    if rules.cc1 {
        for source in &instance.sources {
            let routes = tasks.iter().filter(|t| t.source == source.node).count();
            let memory = instance.memory[source.node] as usize;
            if routes > memory {
                return impossible(
                    "TC1",
                    format!(
                        "source {} starts {} microbatches on {routes} routes, its memory is {memory}",
                        source.node, source.microbatches
                    ),
                );
            }
        }
    }
    let inner: Vec<usize> = instance.present.iter().copied().filter(|s| *s != 0).collect();
    let visits = lengths.total.saturating_sub(lengths.routes);
    if rules.cc3 && !inner.is_empty() {
        let each = visits / inner.len();
        if let Some(s) = inner.iter().find(|s| draw::capacity(instance, **s) < each) {
            return impossible(
                "TC1",
                format!(
                    "stage {s} has to lie on {each} routes, its nodes have memory for {}",
                    draw::capacity(instance, *s)
                ),
            );
        }
    }
    let room: usize = instance.present.iter().map(|s| draw::capacity(instance, *s).min(lengths.routes)).sum();
    if room < lengths.total {
        return impossible(
            "TC1",
            format!("the routes make {} stage visits, the nodes have memory for {room}", lengths.total),
        );
    }
    Ok(())
}

/// Whether some stage order of `length` goes on from `order`. Going to the next present stage above is always
/// allowed where anything is, so no search is needed beyond the lowest choice.
fn some_order(instance: &Instance, order: StageOrder, from: usize, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    let next = instance.present[from..].iter().position(|s| order.step(*s, &instance.rules).is_some());
    next.is_some_and(|i| {
        let stage = instance.present[from + i];
        order.step(stage, &instance.rules).is_some_and(|o| some_order(instance, o, from + i + 1, length - 1))
    })
}

/// Random ties until the limit; the first matching is always there.
fn solve_full(problem: &Problem, instance: &Instance, options: Options, budget: &Budget) -> Result<Solution> {
    let mut simulator = Simulator::new(instance);
    let mut best: Option<(Outcome, Vec<Batch>)> = None;
    let bound = lower_bound_of(problem, budget)?;
    let mut stuck = None;
    let mut work = 0_u64;
    let mut draws = 0_u64;
    let is_proved =
        |best: &Option<(Outcome, Vec<Batch>)>| best.as_ref().is_some_and(|(o, _)| is_tight(o.iteration, bound));
    while draws == 0
        || !(budget.is_over()
            || draws >= MOST_DRAWS
            || is_proved(&best)
            || budget.work_limit.is_some_and(|limit| work >= limit))
    {
        let mut rng = stream_of(options.seed, draws);
        draws += 1;
        let batches = straight::pipelines(instance, &mut rng);
        if let Some(batch) = batches.iter().find(|b| !keeps_order(instance, &b.nodes)) {
            return impossible("max_stage_jump", format!("the straight pipeline {:?} jumps too far", batch.nodes));
        }
        simulator.load(&batches);
        work += simulator.task_count() as u64;
        budget.add_work(simulator.task_count() as u64);
        match simulator.run_dispatch() {
            Ok(outcome) if best.as_ref().is_none_or(|(least, _)| outcome.iteration < least.iteration) => {
                budget.report(seconds(outcome.iteration), seconds(bound));
                best = Some((outcome, batches));
            }
            Ok(_) => {}
            Err(lockup) => stuck = Some(simulator.error_of(&lockup)),
        }
        budget.check_cancelled()?;
    }
    let Some((_, batches)) = best else { return Err(stuck.unwrap_or(Error::Lockup(Vec::new()))) };
    simulator.load(&batches);
    dispatched(&mut simulator)?;
    let order = simulator.dispatched_order();
    Ok(Solution { batches, order, bound, statistics: counts(work, draws) })
}

fn counts(work: u64, attempts: u64) -> Map<String, Value> {
    let mut statistics = Map::new();
    statistics.insert("work".to_owned(), json!(work));
    statistics.insert("attempts".to_owned(), json!(attempts));
    statistics
}

fn keeps_order(instance: &Instance, nodes: &[u32]) -> bool {
    let stages = nodes.iter().map(|n| instance.stage_of[*n as usize]);
    stages
        .into_iter()
        .try_fold(StageOrder::start(&instance.rules), |order, stage| order.step(stage, &instance.rules))
        .is_some()
}

/// Runs the dispatch rule, a lock-up by its names.
fn dispatched(simulator: &mut Simulator<'_>) -> Result<Outcome> {
    simulator.run_dispatch().map_err(|lockup| simulator.error_of(&lockup))
}

/// The first draw that does not lock up.
fn solve_random(
    instance: &Instance,
    below: &Instance,
    tasks: &[RouteTask],
    sets: Option<&[StageSet]>,
    options: Options,
    budget: &Budget,
) -> Result<Solution> {
    let mut locked = None;
    for draw in 0..MOST_DRAWS {
        budget.check_cancelled()?;
        let mut rng = stream_of(options.seed, draw);
        // Guided only where free drawing does not get there, so that the draw stays as random as it can be.
        let guide = sets.filter(|_| draw >= MOST_DRAWS / 2);
        let Some(batches) = random_routes(instance, tasks, guide, &mut rng) else { continue };
        let mut simulator = Simulator::new(instance);
        simulator.load(&batches);
        budget.add_work(simulator.task_count() as u64);
        match dispatched(&mut simulator) {
            Ok(_) => {
                let bound = route_bound(below, &batches);
                let order = simulator.dispatched_order();
                return Ok(Solution {
                    batches,
                    order,
                    bound,
                    statistics: counts(simulator.task_count() as u64, draw + 1),
                });
            }
            Err(error) => locked = Some(error),
        }
        if draw > 0 && budget.is_over() {
            break;
        }
    }
    Err(locked.unwrap_or_else(|| Error::NotFound("no random routes keep the rules".to_owned())))
}

fn random_routes(
    instance: &Instance,
    tasks: &[RouteTask],
    sets: Option<&[StageSet]>,
    rng: &mut Pcg64,
) -> Option<Vec<Batch>> {
    let targets = match sets {
        Some(sets) => draw::dealt(instance, sets, rng),
        None => draw::targets(instance, tasks, rng),
    };
    let mut board = board::Board::new(instance, tasks, &targets, false);
    draw::routes(&mut board, instance, rng).then(|| board.batches())
}

/// Simulates the solution once more and writes it down.
fn assemble(
    problem: &Problem,
    instance: &Instance,
    options: Options,
    budget: &Budget,
    solution: Solution,
) -> Result<Plan> {
    let Solution { batches, order, bound, mut statistics } = solution;
    let mut simulator = Simulator::new(instance);
    simulator.load(&batches);
    let outcome = simulator.run_order(&order).map_err(|lockup| simulator.error_of(&lockup))?;
    let iteration_s = seconds(outcome.iteration);
    debug_assert!(bound <= outcome.iteration + 2 * simulator.task_count() as Time, "a bound above a plan");
    // Two roundings apart, a proof can miss by some nanoseconds; the plan's own time is a bound no lower.
    let lower_bound_s = seconds(bound).min(iteration_s);
    let optimal = is_tight(outcome.iteration, bound)
        && !matches!(options.strategy, Strategy::RandomSkip | Strategy::SkippipeNoTc2);
    for (key, value) in [
        ("wall_s", json!(budget.elapsed_s())),
        ("seed", json!(options.seed)),
        ("threads", json!(options.threads)),
        ("optimal", json!(optimal)),
    ] {
        statistics.insert(key.to_owned(), value);
    }
    let predicted = Predicted {
        iteration_s,
        pipeline_s: seconds(outcome.pipeline),
        allreduce_s: instance.allreduce.iter().map(|t| seconds(*t)).collect(),
        lower_bound_s,
        gap: Predicted::gap_of(iteration_s, lower_bound_s),
    };
    Ok(Plan {
        cluster: problem.cluster().clone(),
        constraints: problem.constraints().clone(),
        skip_ratio: problem.skip_ratio(),
        strategy: options.strategy,
        stages: problem.stages().to_vec(),
        layers: problem.layers().to_vec(),
        absent_nodes: problem.absent_nodes(),
        absent_stages: problem.absent_stages().to_vec(),
        model: problem.cluster().workload().map_or(Value::Null, Workload::model),
        microbatches_per_source: problem.stages()[0]
            .iter()
            .copied()
            .zip(problem.microbatches().iter().copied())
            .collect::<BTreeMap<_, _>>(),
        microbatches: microbatches(instance, &batches),
        tasks: simulator.plan_tasks(&order),
        predicted,
        solver: statistics,
    })
}

fn microbatches(instance: &Instance, batches: &[Batch]) -> Vec<Microbatch> {
    batches
        .iter()
        .enumerate()
        .map(|(id, batch)| Microbatch {
            id,
            source: batch.source,
            nodes: batch.nodes.iter().map(|n| *n as usize).collect(),
            stages: batch.nodes.iter().map(|n| instance.stage_of[*n as usize]).collect(),
            route: batch.route,
            wave: batch.wave,
        })
        .collect()
}
