//! How the stage visits are shared out: CC3 and its extensions, profiles and classes, as bounds on the number of routes
//! that each stage lies on.

use crate::problem::Instance;
use crate::route::Lengths;
use crate::rules::{Constraints, class_sets, stage_bit};

/// Shares that differ from a whole number by no more than this are one.
const ROUNDING: f64 = 1e-9;

/// The least and the greatest number of routes that each stage may lie on, by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Not fewer.
    pub least: Vec<usize>,
    /// Not more; at most one more than `least` where CC3 holds.
    pub most: Vec<usize>,
}

impl Quotas {
    /// Where `source_visits` of the routes of an instance visit stage 0 (under CC1 all of them do).
    ///
    /// CC3 shares the other visits out evenly, a profile in proportion to its weights: each stage gets its share, rounded
    /// down or up, and none more than there are routes. Classes state the numbers themselves. Without any of these rules
    /// all numbers are allowed.
    #[must_use]
    pub fn of(instance: &Instance, lengths: &Lengths, source_visits: usize) -> Self {
        let rules = &instance.rules;
        let mut quotas = Self { least: vec![0; instance.stage_count()], most: vec![0; instance.stage_count()] };
        if let Some(sets) = class_sets(rules) {
            for stage in &instance.present {
                let visits = sets.iter().filter(|set| *set & stage_bit(*stage) != 0).count();
                (quotas.least[*stage], quotas.most[*stage]) = (visits, visits);
            }
            return quotas;
        }
        if !rules.cc3 {
            instance.present.iter().for_each(|stage| quotas.most[*stage] = lengths.routes);
            return quotas;
        }
        (quotas.least[0], quotas.most[0]) = (source_visits, source_visits);
        let inner: Vec<usize> = inner_stages(instance).collect();
        let weights: Vec<f64> = inner.iter().map(|stage| weight(rules, *stage)).collect();
        let visits = lengths.total.saturating_sub(source_visits);
        for (stage, share) in inner.into_iter().zip(shares(&weights, visits, lengths.routes)) {
            quotas.least[stage] = (share + ROUNDING).floor() as usize;
            quotas.most[stage] = (share - ROUNDING).ceil().max(0.0) as usize;
        }
        quotas
    }

    /// The quotas under CC1, which puts stage 0 on every route; or those for the most visits of stage 0 that there can
    /// be, which make the quotas of the others least.
    #[must_use]
    pub fn least_of(instance: &Instance, lengths: &Lengths) -> Self {
        Self::of(instance, lengths, *source_visits(instance, lengths).end())
    }
}

/// How many routes may visit stage 0: under CC1 all; else as many as the other stages leave to it.
#[must_use]
pub fn source_visits(instance: &Instance, lengths: &Lengths) -> std::ops::RangeInclusive<usize> {
    let most = lengths.routes.min(lengths.total);
    let open = inner_stages(instance).filter(|stage| is_open(&instance.rules, *stage)).count();
    if instance.rules.cc1 || inner_stages(instance).next().is_none() {
        most..=most
    } else {
        lengths.total.saturating_sub(lengths.routes * open).min(most)..=most
    }
}

/// The present stages but stage 0.
pub fn inner_stages(instance: &Instance) -> impl Iterator<Item = usize> + '_ {
    instance.present.iter().copied().filter(|stage| *stage != 0)
}

fn weight(rules: &Constraints, stage: usize) -> f64 {
    rules.profile.as_ref().map_or(1.0, |weights| weights[stage - 1])
}

/// Whether the rules let any route visit an inner stage.
fn is_open(rules: &Constraints, stage: usize) -> bool {
    !rules.cc3 || weight(rules, stage) > 0.0
}

/// Shares of `visits` in proportion to `weights`, none above `routes`: what a share is over that goes to the others in
/// proportion. They add up to less where the stages with a weight above 0 cannot take all visits.
fn shares(weights: &[f64], visits: usize, routes: usize) -> Vec<f64> {
    let (limit, mut left) = (routes as f64, visits as f64);
    let mut shares = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0.0).collect();
    while !open.is_empty() {
        // Weights may be of any size, so their sum is taken in units of the greatest.
        let unit = open.iter().map(|i| weights[*i]).fold(0.0, f64::max);
        let sum: f64 = open.iter().map(|i| weights[*i] / unit).sum();
        let share = |i: usize| left * (weights[i] / unit) / sum;
        let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|i| share(**i) >= limit - ROUNDING);
        if full.is_empty() {
            rest.iter().for_each(|i| shares[*i] = share(*i));
            return shares;
        }
        left = (left - limit * full.len() as f64).max(0.0);
        full.iter().for_each(|i| shares[*i] = limit);
        open = rest;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    #[test]
    fn equal_weights_share_evenly() {
        for routes in 1..40 {
            for stages in 1..12 {
                for visits in 0..=routes * stages {
                    for weight in [1.0, 0.1, 3e300, 7e-300] {
                        for share in shares(&vec![weight; stages], visits, routes) {
                            assert_eq!((share + ROUNDING).floor() as usize, visits / stages);
                            assert_eq!((share - ROUNDING).ceil().max(0.0) as usize, visits.div_ceil(stages));
                        }
                    }
                }
            }
        }
    }

    /// What makes a share the right one: the stages below the limit have theirs in one proportion to their weights, those
    /// at the limit would have had more.
    #[test]
    fn shares_are_in_proportion_up_to_the_limit() {
        let mut rng = Pcg64::seed_from_u64(5);
        for _ in 0..2000 {
            let count = rng.random_range(1..8);
            let weights: Vec<f64> =
                (0..count).map(|_| if rng.random_bool(0.2) { 0.0 } else { rng.random::<f64>().powi(3) }).collect();
            let routes = rng.random_range(1..30);
            let visits = rng.random_range(0..=routes * count);
            let room = routes * weights.iter().filter(|w| **w > 0.0).count();
            let found = shares(&weights, visits, routes);
            assert!((found.iter().sum::<f64>() - visits.min(room) as f64).abs() < 1e-6);
            let limit = routes as f64;
            let below = (0..count).filter(|i| weights[*i] > 0.0 && found[*i] < limit - 1e-6);
            let units: Vec<f64> = below.map(|i| found[i] / weights[i]).collect();
            for i in (0..count).filter(|i| weights[*i] > 0.0) {
                for unit in &units {
                    let ratio = found[i] / weights[i];
                    assert!(ratio <= unit * (1.0 + 1e-6), "{found:?} for {weights:?}");
                }
            }
        }
    }
}
