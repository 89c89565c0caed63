//! How the time and the work of one plan are shared: among the surrogate, the searches over allocations, and routes, order
//! and proof on the best of them. A share is of all of it, or of what is left where a part of the search has begun.

use std::time::Duration;

use crate::budget::Budget;

/// The surrogate gets one part in so many.
const SURROGATE_PART: u32 = 5;
/// It gets no more time than this: 20 nodes are settled by then, and the search goes on from there.
const MOST_FOR_SURROGATE: Duration = Duration::from_millis(200);

/// `skippipe` and `full-routed`: what goes into allocations together with their routes; the rest is for the best of them.
pub const JOINT: f64 = 0.6;
/// The same where nothing is left to do for the best allocation.
pub const JOINT_LATE: f64 = 0.95;
/// Of it the first allocation alone.
pub const JOINT_START: f64 = 0.05;
/// The same on small clusters, before their allocations are looked at one by one or chains anneal schedules.
pub const JOINT_OF_SMALL: f64 = 0.1;
/// When these chains end.
pub const CHAINS_OF_SMALL: f64 = 0.8;

/// `full-routed`: straight pipelines, and of what is left the joint search.
pub const STRAIGHT: f64 = 0.25;
pub const JOINT_AFTER_STRAIGHT: f64 = 0.4;

/// The other strategies: the local search over allocations; the rest goes into plans for what it found.
pub const LOCAL: f64 = 0.7;

/// With no more tasks than these an allocation has its proof before chains would anneal its schedules.
pub const FEW_TASKS: usize = 48;

/// Work of one search in a round, and rounds that a limit of work is good for, at least.
const ROUND_WORK: u64 = 100_000;
const LEAST_ROUNDS: u64 = 50;

/// Time and work of the surrogate: its work comes beside the planner's; a clock only where the planner has one, or
/// neither has a limit.
pub fn surrogate_limits(budget: &Budget) -> (Option<Duration>, Option<u64>) {
    let work = budget.work_limit.map(|work| (work / u64::from(SURROGATE_PART)).max(1));
    let time = match budget.time_limit() {
        Some(time) => Some((time / SURROGATE_PART).min(MOST_FOR_SURROGATE)),
        None if work.is_none() => Some(MOST_FOR_SURROGATE),
        None => None,
    };
    (time, work)
}

/// Work after which a search that has this share goes on to what comes next.
pub fn most_work(budget: &Budget, share: f64) -> u64 {
    budget.work_limit.map_or(u64::MAX, |limit| (limit as f64 * share) as u64)
}

/// Work of one of the searches over allocations in a round: where there is little of it, rounds are short.
pub fn round_work(budget: &Budget) -> u64 {
    budget.work_limit.map_or(ROUND_WORK, |limit| (limit / LEAST_ROUNDS).clamp(1_000, ROUND_WORK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_surrogate_gets_a_part_and_a_clock_only_where_there_is_one() {
        let ms = |ms: u64| Some(Duration::from_millis(ms));
        for (time, work, expected) in [
            (None, None, (ms(200), None)),
            (ms(500), None, (ms(100), None)),
            (ms(60_000), None, (ms(200), None)),
            (None, Some(1_000), (None, Some(200))),
            (ms(0), Some(1), (ms(0), Some(1))),
            (ms(500), Some(2_000), (ms(100), Some(400))),
        ] {
            assert_eq!(surrogate_limits(&Budget::new(time, work)), expected);
        }
    }
}
