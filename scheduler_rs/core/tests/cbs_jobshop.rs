//! Conflict-based search on job-shop instances, the special case in which all routes are forced.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::job_shop::{Encoded, shop};
use skippipe_core::budget::Budget;
use skippipe_core::search::cbs::{Answer, Demand, Ended, Question, solve};
use skippipe_core::search::outlook::Outlook;
use skippipe_core::time::NEVER;

fn answer(encoded: &Encoded, work_limit: u64) -> Answer {
    let stages = encoded.instance.stage_count();
    let demand = Demand {
        least: vec![0; stages],
        most: vec![encoded.tasks.len(); stages],
        total: None,
        short: stages,
        long: stages,
        long_routes: None,
    };
    let budget = Budget::new(None, None);
    let outlook = Outlook::new(&encoded.instance, 1, &budget, 1.0).unwrap();
    let question = Question {
        instance: &encoded.instance,
        tasks: &encoded.tasks,
        demand: &demand,
        limit: NEVER,
        suboptimality: 1.0,
        work_limit,
    };
    solve(&question, &outlook, &budget)
}

#[test]
fn classic_optima_are_proved() {
    for name in ["ft06", "la01", "la02", "la03", "la04", "la05"] {
        let shop = shop(name);
        let encoded = shop.encode();
        let answer = answer(&encoded, u64::MAX);
        assert_eq!(answer.ended, Ended::Exhausted, "{name}");
        assert_eq!(encoded.makespan(answer.bound), shop.optimum, "{name}");
        assert_eq!(answer.best.map(|best| encoded.makespan(best.value)), Some(shop.optimum), "{name}");
    }
}

#[test]
fn bounds_hold_at_any_moment() {
    let shop = shop("ft10");
    let encoded = shop.encode();
    for work_limit in [1, 1_000, 20_000] {
        let answer = answer(&encoded, work_limit);
        assert_eq!(answer.ended, Ended::Limit);
        assert!(answer.bound <= encoded.constant + shop.optimum * common::job_shop::UNIT);
        assert!(answer.best.is_none_or(|best| encoded.makespan(best.value) >= shop.optimum));
    }
}
