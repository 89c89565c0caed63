//! The joint search of allocation, routes and order: what it does one after the other.

use crate::allocate::joint::AllocationScope;
use crate::bound::{is_tight, lower_bound_of};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::problem::{Instance, Problem};
use crate::report::{AllocationReport, SearchEvent};
use crate::request::Options;
use crate::route::{Lengths, route_tasks};
use crate::search::allocation::exhaustive::{ExhaustiveSearch, iteration_of};
use crate::search::allocation::joint_annealing::Joint;
use crate::search::allocation::{exhaustive, joint_annealing, race, unused_nodes};
use crate::search::candidate::{Known, Start};
use crate::search::effort;
use crate::search::effort::FEW_TASKS;
use crate::search::fixed_allocation::{plan_from, plan_of_first};
use crate::time::{NEVER, Rounding, Time, seconds};

/// Up to so many nodes, the allocations that were seen race where there are too many to look at all of them.
const FEW_NODES: usize = 12;

/// Tasks of an iteration, about.
fn task_count(problem: &Problem) -> usize {
    let instance = Instance::new(problem, Rounding::Up);
    let lengths = Lengths::of(&instance, route_tasks(&instance).len());
    problem.microbatch_count() * (2 * lengths.short() + 1)
}

/// Allocation, routes and order together: by annealing, on small clusters by a race and by planning every allocation.
#[derive(Clone, Copy)]
pub struct JointSearch<'a> {
    pub problem: &'a Problem,
    /// As the strategy understands it.
    pub asked: &'a Problem,
    pub scope: AllocationScope,
    pub options: Options,
    pub budget: &'a Budget,
}

impl<'a> JointSearch<'a> {
    pub fn plan(self) -> Result<Plan> {
        let Self { asked, scope, options, budget, .. } = self;
        let is_small = exhaustive::is_small(asked, scope);
        let is_few = asked.cluster().nodes().len() <= FEW_NODES && exhaustive::has_equal_sources(asked, scope);
        let is_race = (is_small || is_few) && task_count(asked) > FEW_TASKS;
        let shares = match (is_small, is_race) {
            (true, _) => (effort::JOINT_OF_SMALL, effort::JOINT_OF_SMALL),
            (false, true) => (effort::JOINT_OF_FEW, effort::JOINT_OF_FEW),
            (false, false) => (effort::JOINT, effort::JOINT_LATE),
        };
        let mut joint = joint_annealing::search(asked, scope, options, budget, shares)?;
        let mut exhaustive = match is_small.then(|| ExhaustiveSearch::new(asked, scope, budget)).transpose() {
            Err(Error::Cancelled) if joint.is_some() => None,
            exhaustive => exhaustive?,
        };
        let most = |share: f64, spent: u64| effort::most_work(budget, share).saturating_sub(spent);
        if let Some(joint) = joint.as_mut().filter(|_| is_race) {
            let ends = if is_small { effort::RACE_OF_SMALL } else { effort::RACE_OF_FEW };
            self.race(joint, exhaustive.as_ref(), ends, most(ends.1, joint.work));
        }
        let known = joint.as_ref().map_or(NEVER, |joint| joint.known.key().0);
        if let Some(exhaustive) = exhaustive.as_mut().filter(|_| !is_race || joint.is_none()) {
            exhaustive.advance(
                known,
                options,
                budget,
                effort::JOINT,
                most(effort::JOINT, joint.as_ref().map_or(0, |joint| joint.work)),
            );
            if let Some(error) = exhaustive.impossible(known) {
                return Err(error.clone());
            }
        }
        budget.begin_part();
        let (mut plan, mut is_exhaustive) =
            match (&joint, exhaustive.as_mut().and_then(|exhaustive| exhaustive.plan.take())) {
                // Planned by itself, and better than what changed together with the allocation.
                (_, Some(plan)) if iteration_of(&plan) < known => (plan, true),
                (Some(joint), _) => (self.go_on(joint, exhaustive.as_ref())?, false),
                (None, _) => (plan_of_first(self.problem, options, budget)?, false),
            };
        if let Some(exhaustive) = &mut exhaustive {
            // Time is left where the plan is proved to be the best of its own allocation.
            let spent = plan.solver.work().max(joint.as_ref().map_or(0, |joint| joint.work) + exhaustive.work);
            let left = most(1.0, spent);
            exhaustive.advance(iteration_of(&plan), options, budget, 1.0, left.saturating_add(exhaustive.work));
            if let Some(better) = exhaustive.plan.take() {
                (plan, is_exhaustive) = (better, true);
            }
        }
        if scope.unused {
            let bound = bound_of_all(joint.as_ref(), exhaustive.as_ref(), iteration_of(&plan));
            plan = unused_nodes::without_idle(plan, bound, budget)?;
        }
        self.report(&mut plan, is_exhaustive, joint, exhaustive.as_ref());
        Ok(plan)
    }

    /// Has the allocations that were seen race, with all others where these are few; the winner is the best one then.
    fn race(self, joint: &mut Joint<'a>, exhaustive: Option<&ExhaustiveSearch>, ends: (f64, f64), most: u64) {
        let Self { asked, options, budget, .. } = self;
        let known = joint.known.key().0;
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
        let seen =
            |problem: &Problem| joint.seen.iter().any(|stages| joint_annealing::is_same(stages, problem.stages()));
        entered
            .extend(exhaustive.into_iter().flat_map(ExhaustiveSearch::entries).filter(|(problem, _)| !seen(problem)));
        let Some(raced) = race::race(entered, known, options, budget, ends, most) else {
            return;
        };
        joint.work += raced.work;
        if raced.schedule.key < joint.known.key() {
            if raced.schedule.key.0 < known {
                joint.trace.record(joint.work, Some(raced.schedule.key.0), joint.bound);
            }
            (joint.problem, joint.known) = (raced.problem, Known::Scheduled(raced.schedule));
        }
    }

    /// Goes on with the best allocation as it stands.
    fn go_on(self, joint: &Joint<'_>, exhaustive: Option<&ExhaustiveSearch>) -> Result<Plan> {
        let work = joint.work + exhaustive.map_or(0, |exhaustive| exhaustive.work);
        let bound = bound_of_all(Some(joint), exhaustive, joint.known.key().0);
        let start = Start { known: joint.known.clone(), work, bound };
        plan_from(&joint.problem, self.options, self.budget, Some(&start))
    }

    /// Reports how the allocation was found.
    fn report(
        self,
        plan: &mut Plan,
        is_exhaustive: bool,
        joint: Option<Joint<'a>>,
        exhaustive: Option<&ExhaustiveSearch>,
    ) {
        let iteration = iteration_of(plan);
        let bound = bound_of_all(joint.as_ref(), exhaustive, iteration);
        let elapsed_s = self.budget.elapsed_s();
        let mut report = AllocationReport::default();
        if let Some(joint) = joint {
            let own = std::mem::take(&mut plan.solver.events);
            report.start_s = joint.start_s;
            report.runner_up = joint.runner_up_of(plan, iteration);
            (report.rounds, report.work) = (joint.rounds, joint.joint_work);
            let work = joint.work + exhaustive.map_or(0, |exhaustive| exhaustive.work);
            let mut events = joint.trace.into_events();
            if is_exhaustive {
                // The plan of an allocation by itself has a clock of its own.
                let (upper_s, lower_s) = (Some(seconds(iteration)), plan.predicted.lower_bound_s);
                events.push(SearchEvent { elapsed_s, work, upper_s, lower_s });
                plan.solver.work = Some(work);
            } else {
                events.extend(own);
            }
            plan.solver.events = events;
        }
        report.lower_bound_s = seconds(bound).min(plan.predicted.iteration_s);
        report.planned_one_by_one = exhaustive.is_some();
        plan.solver.allocation = Some(report);
        plan.solver.wall_s = Some(elapsed_s);
    }
}

/// What no allocation beats, where a plan is known that takes `iteration`.
fn bound_of_all(joint: Option<&Joint<'_>>, exhaustive: Option<&ExhaustiveSearch>, iteration: Time) -> Time {
    let bound = joint.map_or(0, |joint| joint.bound);
    exhaustive.map_or(bound, |exhaustive| bound.max(exhaustive.bound(iteration)))
}
