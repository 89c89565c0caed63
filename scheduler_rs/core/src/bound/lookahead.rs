//! Admissible look-ahead of the route search: the least time from a node out and back to it.

use rustc_hash::FxHashMap;

use crate::budget::Budget;
use crate::error::Result;
use crate::problem::Instance;
use crate::route::StageOrder;
use crate::time::{NEVER, Time};

/// What may follow the node just visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It is of the furthest stage so far: only stages above.
    Ahead = 0,
    /// The stage below it has been left out: that one too, as the second half of a swap.
    MaySwap = 1,
    /// It was the second half of a swap: the stage above it has been visited already.
    Swapped = 2,
}

impl Position {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ahead, Self::MaySwap, Self::Swapped];

    /// Of a stage order whose last stage is `stage`.
    #[must_use]
    pub fn of(order: StageOrder, stage: usize) -> Self {
        match (order.is_swapped(stage), order.may_swap()) {
            (true, _) => Self::Swapped,
            (false, true) => Self::MaySwap,
            (false, false) => Self::Ahead,
        }
    }
}

/// Nodes of one stage with the same links: what lies beyond them takes equally long.
#[derive(Debug)]
struct Class {
    stage: usize,
    /// Any one of its nodes.
    node: usize,
    /// The least forward and backward of its nodes.
    work: Time,
}

/// For one source: from the end of a node's forward to the arrival of the gradient for its backward, with
/// a given number of further stages to visit, were no node ever busy. Exact under CC1, CC2 and
/// `max_stage_jump` but for the number of swaps, so never too long.
#[derive(Debug)]
struct Table {
    /// `[hops left][position][class]`.
    least: Vec<[Vec<Time>; 3]>,
}

/// Tables of all sources; sources with equal links and loss share one.
#[derive(Debug)]
pub struct Lookahead {
    class_of: Vec<usize>,
    tables: Vec<Table>,
    /// Table of each node that is a source.
    table_of: Vec<u32>,
}

impl Lookahead {
    /// For routes of at most `longest` visits. Where `share` of the time goes by before all tables are made
    /// (thousands of nodes, none alike), the rest say no more than that head and loss take their time.
    ///
    /// # Errors
    /// [`crate::Error::Cancelled`]
    pub fn new(instance: &Instance, longest: usize, budget: &Budget, share: f64) -> Result<Self> {
        let (classes, class_of) = classes(instance);
        let mut known: FxHashMap<((usize, usize), Time), usize> = FxHashMap::default();
        let mut lookahead = Self { class_of, tables: Vec::new(), table_of: vec![0; instance.node_count()] };
        for source in &instance.sources {
            let key = (instance.place(source.node), instance.least_loss(source.node));
            let table = match known.get(&key) {
                Some(table) => *table,
                None => {
                    lookahead.tables.push(Table::new(instance, &classes, source.node, longest, budget, share)?);
                    lookahead.tables.len() - 1
                }
            };
            known.insert(key, table);
            lookahead.table_of[source.node] = table as u32;
        }
        Ok(lookahead)
    }

    /// That knows nothing but that head and loss take their time.
    #[must_use]
    pub fn blank(instance: &Instance, longest: usize) -> Self {
        let (classes, class_of) = classes(instance);
        let mut lookahead = Self { class_of, tables: Vec::new(), table_of: vec![0; instance.node_count()] };
        for source in &instance.sources {
            lookahead.table_of[source.node] = lookahead.tables.len() as u32;
            lookahead.tables.push(Table::blank(instance, &classes, source.node, longest));
        }
        lookahead
    }

    /// Nanoseconds, [`NEVER`] where no route of that length exists.
    #[must_use]
    pub fn least(&self, source: usize, node: usize, position: Position, hops_left: usize) -> Time {
        self.tables[self.table_of[source] as usize].least[hops_left][position as usize][self.class_of[node]]
    }

    /// The least time of a whole iteration of one microbatch with `length` visits (all-reduce left out).
    #[must_use]
    pub fn round_trip(&self, instance: &Instance, source: usize, length: usize) -> Time {
        let around = |node: usize| {
            let stage = instance.stage_of[node];
            let begun = StageOrder::start(&instance.rules).step(stage, &instance.rules);
            let position = begun.map_or(Position::Ahead, |order| Position::of(order, stage));
            let out = self.least(source, node, position, length - 1);
            if out >= NEVER {
                return NEVER;
            }
            instance.transfer(source, node) + instance.least_work(node) + out + instance.transfer(node, source)
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

/// The classes of an instance, and the class of each node (0 where it serves no stage).
fn classes(instance: &Instance) -> (Vec<Class>, Vec<usize>) {
    let mut known: FxHashMap<(usize, (usize, usize)), usize> = FxHashMap::default();
    let mut classes: Vec<Class> = Vec::new();
    let mut class_of = vec![0; instance.node_count()];
    for (stage, members) in instance.members.iter().enumerate() {
        for node in members.iter().copied() {
            let work = instance.least_work(node);
            let class = *known.entry((stage, instance.place(node))).or_insert_with(|| {
                classes.push(Class { stage, node, work });
                classes.len() - 1
            });
            classes[class].work = classes[class].work.min(work);
            class_of[node] = class;
        }
    }
    (classes, class_of)
}

impl Table {
    fn blank(instance: &Instance, classes: &[Class], source: usize, longest: usize) -> Self {
        let nothing = vec![instance.least_loss(source); classes.len()];
        Self { least: vec![[nothing.clone(), nothing.clone(), nothing]; longest.max(1)] }
    }

    fn new(
        instance: &Instance,
        classes: &[Class],
        source: usize,
        longest: usize,
        budget: &Budget,
        share: f64,
    ) -> Result<Self> {
        // Of the nodes with the source's links, the source itself needs no transfer: take that for all.
        let turn = |class: &Class| {
            if instance.place(class.node) == instance.place(source) {
                return instance.least_loss(source);
            }
            instance.transfer(class.node, source) + instance.least_loss(source) + instance.transfer(source, class.node)
        };
        let base: Vec<Time> = classes.iter().map(turn).collect();
        let mut of_stage: Vec<Vec<usize>> = vec![Vec::new(); instance.stage_count()];
        for (c, class) in classes.iter().enumerate() {
            of_stage[class.stage].push(c);
        }
        let mut least = vec![[base.clone(), base.clone(), base]];
        for hops in 1..longest.max(1) {
            let shorter = &least[hops - 1];
            let mut level = [vec![NEVER; classes.len()], vec![NEVER; classes.len()], vec![NEVER; classes.len()]];
            for from in 0..instance.stage_count() {
                budget.check_cancelled()?;
                if budget.is_past(share) {
                    return Ok(Self::blank(instance, classes, source, longest));
                }
                for position in Position::ALL {
                    for (to, next) in successors(instance, from, position) {
                        for v in &of_stage[from] {
                            let mut best = level[position as usize][*v];
                            for u in &of_stage[to] {
                                let (a, b) = (classes[*v].node, classes[*u].node);
                                let around = instance.transfer(a, b) + instance.transfer(b, a) + classes[*u].work;
                                best = best.min(shorter[next as usize][*u].saturating_add(around));
                            }
                            level[position as usize][*v] = best.min(NEVER);
                        }
                    }
                }
            }
            least.push(level);
        }
        Ok(Self { least })
    }
}

/// Stages that may follow stage `from`, and the position that results.
pub(crate) fn successors(instance: &Instance, from: usize, position: Position) -> Vec<(usize, Position)> {
    let rules = &instance.rules;
    let furthest = from + usize::from(position == Position::Swapped);
    let within = |s: usize| rules.max_stage_jump.is_none_or(|jump| s <= furthest + jump as usize);
    instance
        .present
        .iter()
        .copied()
        .filter(|s| *s != from && (*s != 0 || !rules.cc1))
        .filter_map(|s| {
            if !rules.cc2 {
                // The furthest stage is not known here, so a jump cannot be ruled out.
                Some((s, Position::Ahead))
            } else if s > furthest {
                let next = if s > furthest + 1 && rules.max_swaps > 0 { Position::MaySwap } else { Position::Ahead };
                within(s).then_some((s, next))
            } else {
                (position == Position::MaySwap && s + 1 == from).then_some((s, Position::Swapped))
            }
        })
        .collect()
}
