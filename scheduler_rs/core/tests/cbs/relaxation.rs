//! The routes of one source alone are a relaxation of all.

use rand::SeedableRng;
use rand_pcg::Pcg64;
use skippipe_core::problem::Instance;
use skippipe_core::route::{RouteTask, route_tasks};
use skippipe_core::time::{NEVER, Rounding};

use super::asked::{Asked, lookahead_of};
use super::exhaustive::optimum;
use super::instances::{extended, problem};
use super::routes::demand;

#[test]
fn one_source_alone_is_a_relaxation() {
    let mut rng = Pcg64::seed_from_u64(5);
    let mut tried = 0;
    while tried < 90 {
        let Some(problem) = problem(&mut rng) else { continue };
        let problem = if tried < 60 { Some(problem) } else { extended(&problem, &mut rng) };
        let Some(problem) = problem else { continue };
        let instance = Instance::new(&problem, Rounding::Down);
        let all = route_tasks(&instance);
        if instance.sources.len() < 2 {
            continue;
        }
        let Some(whole) = demand(&instance, &all, 0) else { continue };
        let Ok(Some(optimum_of_all)) = optimum(&instance, &all, &whole, NEVER) else { continue };
        tried += 1;
        for source in &instance.sources {
            let tasks: Vec<RouteTask> = all.iter().copied().filter(|t| t.source == source.node).collect();
            let Some(part) = demand(&instance, &tasks, all.len() - tasks.len()) else { continue };
            let lookahead = lookahead_of(&instance, &part);
            let asked = Asked { instance: &instance, tasks: &tasks, demand: &part, lookahead: &lookahead };
            let answer = asked.solve(NEVER, 1.0, u64::MAX);
            assert_eq!(optimum(&instance, &tasks, &part, NEVER), Ok(answer.best.map(|b| b.value)));
            assert!(answer.bound <= optimum_of_all);
        }
    }
}
