//! The search and the bounds against the exhaustive optimum.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use skippipe_core::bound::lower_bound;
use skippipe_core::budget::Budget;
use skippipe_core::check::check;
use skippipe_core::error::Error;
use skippipe_core::problem::{Instance, Problem};
use skippipe_core::request::{Options, PlanRequest};
use skippipe_core::route::route_tasks;
use skippipe_core::rules::Strategy;
use skippipe_core::search::methods::cbs::Termination;
use skippipe_core::time::{NEVER, Rounding, seconds};

use super::asked::{Asked, lookahead_of, plan_of};
use super::exhaustive::optimum;
use super::instances::{extended, other_load, problem, sharing};
use super::routes::demand;

#[test]
fn optimum_is_that_of_the_exhaustive_search() {
    let (found, none) = compared(500, &mut Pcg64::seed_from_u64(11), |problem, _| Some(problem));
    assert!(found > 250 && none > 5, "{found} with a plan, {none} without");
}

#[test]
fn profiles_and_classes_are_exact_too() {
    let (found, none) = compared(400, &mut Pcg64::seed_from_u64(17), |problem, rng| extended(&problem, rng));
    assert!(found > 200 && none > 5, "{found} with a plan, {none} without");
}

#[test]
fn shared_processors_are_exact_too() {
    let mut rng = Pcg64::seed_from_u64(23);
    let shared = |problem: Problem, rng: &mut Pcg64| {
        let problem = if rng.random_bool(0.3) { extended(&problem, rng)? } else { problem };
        sharing(&problem, rng)
    };
    let (found, none) = compared(500, &mut rng, shared);
    assert!(found > 250 && none > 5, "{found} with a plan, {none} without");
}

/// Compares the search with the exhaustive one on so many random problems; numbers of those with and without a plan.
fn compared(cases: usize, rng: &mut Pcg64, changed: impl Fn(Problem, &mut Pcg64) -> Option<Problem>) -> (usize, usize) {
    let (mut found, mut none) = (0, 0);
    for case in 0..cases {
        let Some(problem) = problem(rng).and_then(|problem| changed(problem, rng)) else { continue };
        let mut instance = Instance::new(&problem, Rounding::Up);
        let is_uneven = rng.random_bool(0.15);
        if is_uneven {
            other_load(&mut instance, rng);
        }
        let tasks = route_tasks(&instance);
        let Some(demand) = demand(&instance, &tasks, 0) else { continue };
        let lookahead = lookahead_of(&instance, &demand);
        let asked = Asked { instance: &instance, tasks: &tasks, demand: &demand, lookahead: &lookahead };
        let answer = asked.solve(NEVER, 1.0, u64::MAX);
        // Nothing below what was found, and that itself can be had.
        let limit = answer.best.as_ref().map_or(NEVER, |b| b.value + 1);
        let Ok(expected) = optimum(&instance, &tasks, &demand, limit) else { continue };
        assert_eq!(answer.termination, Termination::Exhausted, "case {case}: {:?}", problem.constraints());
        assert_eq!(
            answer.best.as_ref().map(|b| b.value),
            expected,
            "case {case}: {:?} {:?}",
            problem.constraints(),
            answer.best
        );
        assert_eq!(answer.bound, expected.unwrap_or(NEVER), "case {case}");
        let Some(expected) = expected else {
            none += 1;
            continue;
        };
        found += 1;
        // Whole seconds: rounding down changes nothing.
        let bound = lower_bound(&instance, &tasks, &lookahead, &Budget::new(None, None)).unwrap();
        assert!(bound <= expected + instance.epilogue, "case {case}: bound {bound} above {expected}");
        let plan = plan_of(&problem, &instance, answer.best.as_ref().unwrap());
        // Plans know one kind of microbatch.
        if !is_uneven {
            assert_eq!(check(&plan), Vec::<String>::new(), "case {case}");
        }
        // Nothing below the optimum, and with it as the limit nothing at all.
        let none_below = asked.solve(expected, 1.0, u64::MAX);
        assert!(none_below.best.is_none() && none_below.termination == Termination::Exhausted);
        assert_eq!(none_below.bound, expected, "case {case}");
        assert_eq!(asked.solve(expected + 1, 1.0, u64::MAX).best.map(|b| b.value), Some(expected));
        // Bounds at any moment, the same again for the same work, and what the factor allows.
        for work in [1, 30, 200] {
            let stopped = asked.solve(NEVER, 1.0, work);
            assert!(stopped.bound <= expected, "case {case}: {} above {expected}", stopped.bound);
            let again = asked.solve(NEVER, 1.0, work);
            assert_eq!((stopped.bound, stopped.best, stopped.statistics), (again.bound, again.best, again.statistics));
        }
        let loose = asked.solve(NEVER, 1.3, u64::MAX);
        let value = loose.best.unwrap().value;
        assert!(loose.bound <= expected && expected <= value && value as f64 <= 1.3 * loose.bound as f64);
    }
    (found, none)
}

/// Whole plans by the portfolio: none is below the optimum, no bound above it, and what is called impossible is.
#[test]
fn what_a_plan_says_of_the_optimum_holds() {
    let mut rng = Pcg64::seed_from_u64(29);
    let (mut met, mut planned, mut impossible) = (0, 0, 0);
    for case in 0..300 {
        let Some(problem) = problem(&mut rng) else { continue };
        let changed = if case % 2 == 0 { Some(problem) } else { extended(&problem, &mut rng) };
        let shared = |problem: Problem| if case % 3 == 0 { sharing(&problem, &mut rng) } else { Some(problem) };
        let Some(problem) = changed.and_then(shared) else { continue };
        let instance = Instance::new(&problem, Rounding::Up);
        let tasks = route_tasks(&instance);
        let Some(demand) = demand(&instance, &tasks, 0) else { continue };
        let Ok(expected) = optimum(&instance, &tasks, &demand, NEVER) else { continue };
        let request = PlanRequest::given(problem.clone(), Options::new(Strategy::Skippipe, 1));
        match (skippipe_core::plan(&request, &Budget::new(None, Some(3_000))), expected) {
            (Ok(plan), Some(expected)) => {
                let optimum_s = seconds(expected + instance.epilogue);
                let (found_s, bound_s) = (plan.predicted.iteration_s, plan.predicted.lower_bound_s);
                assert!(found_s >= optimum_s - 1e-9, "case {case}: {found_s} s is below {optimum_s} s");
                assert!(bound_s <= optimum_s + 1e-9, "case {case}: bound {bound_s} s above {optimum_s} s");
                assert!(
                    plan.solver.optimal != Some(true) || found_s <= optimum_s + 1e-9,
                    "case {case}: {found_s} s is not optimal"
                );
                planned += 1;
                met += usize::from(found_s <= optimum_s + 1e-9);
            }
            (Ok(_), None) => panic!("case {case}: a plan where there is none"),
            (Err(Error::Impossible { .. }), None) => impossible += 1,
            (Err(Error::NotFound(_)), _) => {}
            (Err(error), expected) => panic!("case {case}: {error}, optimum {expected:?}"),
        }
    }
    assert!(planned > 200 && impossible > 15, "{planned} planned, {impossible} impossible");
    // 246 of 250, with this little work.
    assert!(100 * met >= 97 * planned, "{met} of {planned} optima are met");
}
