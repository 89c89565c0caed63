//! The constraint tree: an arena of nodes that hold only their own constraints, with best-first or focal order of
//! expansion.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

use rustc_hash::{FxHashSet, FxHasher};
use smallvec::SmallVec;

use crate::time::{NEVER, Time};

use super::domains::Decision;

/// Index of a node.
pub type NodeId = u32;

/// The root.
pub const ROOT: NodeId = 0;

/// A node; `decisions` are the constraints that it adds to those of its parent.
#[derive(Clone, Debug)]
struct Node {
    parent: NodeId,
    depth: u32,
    decisions: SmallVec<[Decision; 2]>,
}

/// All nodes, and the open ones in order.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    by_bound: BTreeSet<(Time, NodeId)>,
    /// Open nodes with a bound within the suboptimality factor of the least one, by [`Self::focal_key`].
    focal: BTreeSet<(u32, u32, Time, NodeId)>,
    conflicts: Vec<u32>,
    bounds: Vec<Time>,
    /// Open nodes with bounds up to this one are in `focal`.
    focal_limit: Time,
    suboptimality: f64,
    seen: FxHashSet<(u64, u64)>,
}

impl Tree {
    /// No nodes.
    pub fn empty(suboptimality: f64) -> Self {
        let mut tree = Self::new(0, suboptimality);
        tree.by_bound.clear();
        tree.nodes.clear();
        tree
    }

    /// The root alone, open.
    pub fn new(bound: Time, suboptimality: f64) -> Self {
        let root = Node { parent: ROOT, depth: 0, decisions: SmallVec::new() };
        let mut tree = Self {
            nodes: vec![root],
            by_bound: BTreeSet::new(),
            focal: BTreeSet::new(),
            conflicts: vec![0],
            bounds: vec![bound],
            focal_limit: Time::MIN,
            suboptimality: suboptimality.max(1.0),
            seen: FxHashSet::default(),
        };
        tree.by_bound.insert((bound, ROOT));
        tree
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The least bound of an open node.
    pub fn least_bound(&self) -> Option<Time> {
        self.by_bound.first().map(|(bound, _)| *bound)
    }

    /// The largest bound within the suboptimality factor of `least`.
    pub fn within(&self, least: Time) -> Time {
        if self.suboptimality <= 1.0 {
            least
        } else {
            ((least as f64 * self.suboptimality) as Time).clamp(least, NEVER)
        }
    }

    /// Opens a child of `parent`; none where the same constraints stand elsewhere in the tree.
    pub fn open(
        &mut self,
        parent: NodeId,
        decisions: SmallVec<[Decision; 2]>,
        bound: Time,
        conflicts: u32,
    ) -> Option<NodeId> {
        let id = self.nodes.len() as NodeId;
        let depth = self.nodes[parent as usize].depth + 1;
        self.nodes.push(Node { parent, depth, decisions });
        let mut all = self.decisions(id);
        all.sort_unstable();
        all.dedup();
        if !self.seen.insert((fingerprint(&all, 1), fingerprint(&all, 2))) {
            self.nodes.pop();
            return None;
        }
        self.conflicts.push(conflicts);
        self.bounds.push(bound);
        self.by_bound.insert((bound, id));
        if bound <= self.focal_limit {
            self.focal.insert(self.focal_key(id));
        }
        Some(id)
    }

    /// Fewest conflicts first, then deepest, then least bound.
    fn focal_key(&self, id: NodeId) -> (u32, u32, Time, NodeId) {
        let depth = self.nodes[id as usize].depth;
        (self.conflicts[id as usize], u32::MAX - depth, self.bounds[id as usize], id)
    }

    /// Takes the next node to expand: the first one of the focal list.
    pub fn pop(&mut self) -> Option<(NodeId, Time)> {
        let limit = self.within(self.least_bound()?);
        if limit > self.focal_limit {
            let above = self.focal_limit.saturating_add(1);
            let more: Vec<NodeId> = self.by_bound.range((above, 0)..=(limit, NodeId::MAX)).map(|(_, id)| *id).collect();
            for id in more {
                self.focal.insert(self.focal_key(id));
            }
            self.focal_limit = limit;
        }
        let (_, _, bound, id) = self.focal.pop_first()?;
        self.by_bound.remove(&(bound, id));
        Some((id, bound))
    }

    /// All constraints of a node, from the root on.
    pub fn decisions(&self, id: NodeId) -> Vec<Decision> {
        let mut all = Vec::new();
        let mut next = id;
        loop {
            let node = &self.nodes[next as usize];
            all.extend(node.decisions.iter().rev());
            if next == ROOT {
                break;
            }
            next = node.parent;
        }
        all.reverse();
        all
    }
}

fn fingerprint(decisions: &[Decision], salt: u64) -> u64 {
    let mut hasher = BuildHasherDefault::<FxHasher>::default().build_hasher();
    salt.hash(&mut hasher);
    decisions.hash(&mut hasher);
    hasher.finish()
}
