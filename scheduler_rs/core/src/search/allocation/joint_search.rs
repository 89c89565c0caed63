//! The joint search of allocation, routes and order: what it does one after the other.

use crate::allocate::joint::AllocationScope;
use crate::bound::is_tight;
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::part::Part;
use crate::plan::Plan;
use crate::problem::{Instance, Problem};
use crate::report::{AllocationReport, SearchEvent};
use crate::request::Options;
use crate::route::{Lengths, route_tasks};
use crate::search::allocation::exhaustive::{ExhaustiveSearch, iteration_of};
use crate::search::allocation::joint_annealing::Joint;
use crate::search::allocation::{exhaustive, joint_annealing, schedule_chains, unused_nodes};
use crate::search::candidate::{Known, Start};
use crate::search::effort;
use crate::search::effort::FEW_TASKS;
use crate::search::fixed_allocation::{plan_from, plan_of_first};
use crate::search::methods::annealing::AllocationState;
use crate::time::{NEVER, Rounding, Time, seconds};

/// Up to so many nodes, chains anneal allocation and complete schedules.
const FEW_NODES: usize = 12;

/// Tasks of an iteration, about.
fn task_count(problem: &Problem) -> usize {
    let instance = Instance::new(problem, Rounding::Up);
    let lengths = Lengths::of(&instance, route_tasks(&instance).len());
    problem.microbatch_count() * (2 * lengths.short() + 1)
}

/// Allocation, routes and order together: by annealing, on small clusters of complete schedules or by planning every
/// allocation.
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
        let is_small = exhaustive::is_small(asked, scope) && options.has(Part::OneByOne);
        // Where all allocations are soon looked at one by one, nothing else is to do.
        let is_few = options.has(Part::ScheduleChains)
            && asked.cluster().nodes().len() <= FEW_NODES
            && exhaustive::has_equal_sources(asked, scope)
            && task_count(asked) > FEW_TASKS;
        let shares = if is_small || is_few {
            (effort::JOINT_OF_SMALL, effort::JOINT_OF_SMALL)
        } else {
            (effort::JOINT, effort::JOINT_LATE)
        };
        let mut joint = match options.has(Part::JointAnnealing) {
            true => joint_annealing::search(asked, scope, options, budget, shares)?,
            false => None,
        };
        let mut exhaustive = match is_small.then(|| ExhaustiveSearch::new(asked, scope, budget)).transpose() {
            Err(Error::Cancelled) if joint.is_some() => None,
            exhaustive => exhaustive?,
        };
        let most = |share: f64, spent: u64| effort::most_work(budget, share).saturating_sub(spent);
        if let Some(joint) = joint.as_mut().filter(|_| is_few) {
            let bound = bound_of_all(Some(joint), exhaustive.as_ref(), NEVER);
            self.anneal_schedules(joint, bound, most(effort::CHAINS_OF_SMALL, joint.work))?;
        }
        let known = joint.as_ref().map_or(NEVER, |joint| joint.known.key().0);
        if let Some(exhaustive) = exhaustive.as_mut().filter(|_| !is_few || joint.is_none()) {
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
        if scope.unused && options.has(Part::IdleNodes) {
            let bound = bound_of_all(joint.as_ref(), exhaustive.as_ref(), iteration_of(&plan));
            plan = unused_nodes::without_idle(plan, bound, budget)?;
        }
        self.report(&mut plan, is_exhaustive, joint, exhaustive.as_ref());
        Ok(plan)
    }

    /// Has chains anneal allocation and schedule; what they find is the best one then, if it is better. No allocation takes
    /// less than `bound`.
    fn anneal_schedules(self, joint: &mut Joint<'a>, bound: Time, most: u64) -> Result<()> {
        let Self { asked, scope, options, budget, .. } = self;
        let known = joint.known.key();
        if is_tight(known.0, bound) {
            return Ok(());
        }
        let first = AllocationState::of(asked, scope)?;
        let share = effort::CHAINS_OF_SMALL;
        let Some(found) = schedule_chains::search(&first, options, bound, budget, share, most) else {
            return Ok(());
        };
        joint.work += found.work;
        if found.schedule.key < known {
            if found.schedule.key.0 < known.0 {
                joint.trace.record(joint.work, Some(found.schedule.key.0), joint.bound);
            }
            (joint.problem, joint.known) = (found.problem, Known::Scheduled(found.schedule));
        }
        Ok(())
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
