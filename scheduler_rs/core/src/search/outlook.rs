//! Admissible look-ahead of the route search: the least time from a node out and back to it.

use rustc_hash::FxHashMap;

use crate::problem::Instance;
use crate::time::{NEVER, Time};

/// Whether the node just visited is the furthest stage, or the second half of a swap (the stage above it
/// has been visited already).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The furthest stage so far.
    Furthest = 0,
    /// One below the furthest.
    Swapped = 1,
}

/// For one source: from the end of a node's forward to the arrival of the gradient for its backward, with
/// a given number of further stages to visit, were no node ever busy. Exact under CC1, CC2 and
/// `max_stage_jump` but for the number of swaps and repeated visits, so never too long.
#[derive(Debug)]
struct Table {
    /// `[hops left][position][node]`.
    least: Vec<[Vec<Time>; 2]>,
}

/// Tables of all sources; sources with equal links and loss share one.
#[derive(Debug)]
pub struct Outlook {
    tables: Vec<Table>,
    table_of: FxHashMap<usize, usize>,
}

impl Outlook {
    /// For routes of at most `longest` visits.
    #[must_use]
    pub fn new(instance: &Instance, longest: usize) -> Self {
        let mut known: FxHashMap<(usize, Time), usize> = FxHashMap::default();
        let mut outlook = Self { tables: Vec::new(), table_of: FxHashMap::default() };
        for source in &instance.sources {
            // A node's own link to itself is free, so only the members of a place that has several
            // nodes are alike; they are alike but for that one link, and the least of both is valid.
            let key = (instance.place(source.node), instance.loss[source.node]);
            let table = *known.entry(key).or_insert_with(|| {
                outlook.tables.push(Table::new(instance, source.node, longest));
                outlook.tables.len() - 1
            });
            outlook.table_of.insert(source.node, table);
        }
        outlook
    }

    /// Nanoseconds, [`NEVER`] where no route of that length exists.
    #[must_use]
    pub fn least(&self, source: usize, node: usize, position: Position, hops_left: usize) -> Time {
        self.tables[self.table_of[&source]].least[hops_left][position as usize][node]
    }

    /// The least time of a whole iteration of one microbatch with `length` visits (all-reduce left out).
    #[must_use]
    pub fn round_trip(&self, instance: &Instance, source: usize, length: usize) -> Time {
        let around = |node: usize| {
            let out = self.least(source, node, Position::Furthest, length - 1);
            if out >= NEVER {
                return NEVER;
            }
            instance.transfer(source, node)
                + instance.forward[node]
                + out
                + instance.backward[node]
                + instance.transfer(node, source)
        };
        if instance.rules.cc1 {
            around(source)
        } else {
            first_stages(instance).flat_map(|s| &instance.members[s]).map(|n| around(*n)).min().unwrap_or(NEVER)
        }
    }
}

/// Stages with which a route may begin where CC1 is off.
fn first_stages(instance: &Instance) -> impl Iterator<Item = usize> + '_ {
    instance.present.iter().copied().filter(|s| instance.rules.max_stage_jump.is_none_or(|jump| *s <= jump as usize))
}

impl Table {
    fn new(instance: &Instance, source: usize, longest: usize) -> Self {
        let n = instance.node_count();
        // Another node of the source's place is as far from `source` as `source` itself is near: take 0.
        let turn = |node: usize| {
            if instance.place(node) == instance.place(source) {
                return instance.loss[source];
            }
            instance.transfer(node, source) + instance.loss[source] + instance.transfer(source, node)
        };
        let base: Vec<Time> = (0..n).map(turn).collect();
        let mut least = vec![[base.clone(), base]];
        for hops in 1..longest.max(1) {
            let shorter = &least[hops - 1];
            let mut level = [vec![NEVER; n], vec![NEVER; n]];
            for (from, members) in instance.members.iter().enumerate() {
                for position in [Position::Furthest, Position::Swapped] {
                    for (to, next) in successors(instance, from, position) {
                        for v in members {
                            let mut best = level[position as usize][*v];
                            for u in &instance.members[to] {
                                let beyond = shorter[next as usize][*u];
                                let around = instance.transfer(*v, *u)
                                    + instance.transfer(*u, *v)
                                    + instance.forward[*u]
                                    + instance.backward[*u];
                                best = best.min(beyond.saturating_add(around));
                            }
                            level[position as usize][*v] = best.min(NEVER);
                        }
                    }
                }
            }
            least.push(level);
        }
        Self { least }
    }
}

/// Stages that may follow stage `from`, and what the place is then.
fn successors(instance: &Instance, from: usize, position: Position) -> Vec<(usize, Position)> {
    let rules = &instance.rules;
    let furthest = from + position as usize;
    let within = |s: usize| rules.max_stage_jump.is_none_or(|jump| s <= furthest + jump as usize);
    instance
        .present
        .iter()
        .copied()
        .filter(|s| *s != from && (*s != 0 || !rules.cc1))
        .filter_map(|s| {
            if !rules.cc2 {
                // The furthest stage is not known here, so a jump cannot be ruled out.
                Some((s, Position::Furthest))
            } else if s > furthest {
                within(s).then_some((s, Position::Furthest))
            } else {
                let swap = position == Position::Furthest && s + 1 == from && rules.max_swaps > 0;
                swap.then_some((s, Position::Swapped))
            }
        })
        .collect()
}
