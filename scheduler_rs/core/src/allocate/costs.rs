//! The cluster as the surrogate sees it: transfer times between sites, and forward times. It knows no shared processors:
//! nodes of one are as far apart as their links say.

use rustc_hash::FxHashMap;

use crate::cluster::Cluster;

/// Forward times are summed in whole picoseconds, so that the sum does not depend on its order.
const PICOSECONDS: f64 = 1e12;

/// Times between sites. A site is a set of nodes with the same transfer times, such as a region.
#[derive(Clone, Debug)]
pub struct Costs {
    sites: usize,
    site_of: Vec<u32>,
    apart_s: Vec<f64>,
    round_trip_s: Vec<f64>,
    forward_ps: Vec<i64>,
    class_of: Vec<u32>,
}

impl Costs {
    /// The costs of a cluster.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        let Sites { site_of, first, second } = sites_of(cluster);
        let sites = first.len();
        let mut apart_s = vec![0.0; sites * sites];
        let mut round_trip_s = vec![0.0; sites * sites];
        let transfer = |i: usize, j: usize| cluster.link_s(i, j, cluster.activation_bytes());
        for a in 0..sites {
            for b in 0..sites {
                let other = if a == b { second[a] } else { first[b] };
                let (there, back) = (transfer(first[a], other), transfer(other, first[a]));
                apart_s[a * sites + b] = there.max(back);
                round_trip_s[a * sites + b] = there + back;
            }
        }
        let forward_ps = cluster.nodes().iter().map(|node| (node.forward_s * PICOSECONDS).round() as i64).collect();
        let site_of: Vec<u32> = site_of.iter().map(|site| *site as u32).collect();
        let class_of = classes_of(cluster, &site_of);
        Self { sites, site_of, apart_s, round_trip_s, forward_ps, class_of }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.site_of.len()
    }

    /// Number of sites.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.sites
    }

    /// Site of a node.
    #[must_use]
    pub fn site(&self, node: usize) -> usize {
        self.site_of[node] as usize
    }

    /// Class of a node: nodes of one class have the same site, times and memory.
    #[must_use]
    pub fn class(&self, node: usize) -> usize {
        self.class_of[node] as usize
    }

    /// Transfer time between two different nodes of these sites in the slower direction, in seconds.
    #[must_use]
    pub fn apart_s(&self, a: usize, b: usize) -> f64 {
        self.apart_s[a * self.sites + b]
    }

    /// Round trip between two different nodes of these sites, in seconds.
    #[must_use]
    pub fn round_trip_s(&self, a: usize, b: usize) -> f64 {
        self.round_trip_s[a * self.sites + b]
    }

    /// Median transfer time over pairs of different sites, in seconds; with a single site, that within it.
    pub(super) fn median_s(&self) -> f64 {
        let pairs = (0..self.sites).flat_map(|a| (0..a.max(1)).map(move |b| (a, b)));
        let mut times: Vec<f64> = pairs.map(|(a, b)| self.apart_s(a, b)).collect();
        let middle = times.len() / 2;
        *times.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// Forward time of a node in picoseconds.
    pub(super) fn forward_ps(&self, node: usize) -> i128 {
        i128::from(self.forward_ps[node])
    }

    /// Twice the mean of `count` forward times with this sum in picoseconds, in seconds.
    pub(super) fn mean_twice_s(sum_ps: i128, count: usize) -> f64 {
        2.0 * sum_ps as f64 / (count.max(1) as f64 * PICOSECONDS)
    }
}

/// Site of every node, and for every site its first node and its second one (the first again where there is none).
struct Sites {
    site_of: Vec<usize>,
    first: Vec<usize>,
    second: Vec<usize>,
}

/// The cluster's regions, or else classes of nodes with identical links to and from all others. That is an equivalence,
/// so the first node of a site represents it.
fn sites_of(cluster: &Cluster) -> Sites {
    let n = cluster.nodes().len();
    let mut sites = Sites { site_of: Vec::with_capacity(n), first: Vec::new(), second: Vec::new() };
    let mut site_of_region: FxHashMap<usize, usize> = FxHashMap::default();
    for node in 0..n {
        let known = match cluster.region_of() {
            Some(regions) => site_of_region.get(&regions[node]).copied(),
            None => sites.first.iter().position(|first| are_twins(cluster, *first, node)),
        };
        let site = known.unwrap_or(sites.first.len());
        if known.is_none() {
            sites.first.push(node);
            sites.second.push(node);
            site_of_region.insert(cluster.link_index(node), site);
        } else if sites.second[site] == sites.first[site] {
            sites.second[site] = node;
        }
        sites.site_of.push(site);
    }
    sites
}

fn are_twins(cluster: &Cluster, a: usize, b: usize) -> bool {
    let transfer = |i: usize, j: usize| cluster.link_s(i, j, cluster.activation_bytes());
    let mut others = (0..cluster.nodes().len()).filter(|k| *k != a && *k != b);
    transfer(a, b) == transfer(b, a)
        && others.all(|k| transfer(a, k) == transfer(b, k) && transfer(k, a) == transfer(k, b))
}

/// Classes of the nodes, numbered in the order of their first nodes.
fn classes_of(cluster: &Cluster, site_of: &[u32]) -> Vec<u32> {
    let mut known: FxHashMap<[u64; 6], u32> = FxHashMap::default();
    let key = |i: usize| {
        let node = &cluster.nodes()[i];
        let step = cluster.step_s().get(i).copied().unwrap_or(0.0);
        let [forward, backward, loss, step] = [node.forward_s, node.backward_s, node.loss_s, step].map(f64::to_bits);
        [u64::from(site_of[i]), forward, backward, loss, step, u64::from(node.memory)]
    };
    (0..site_of.len())
        .map(|i| {
            let next = known.len() as u32;
            *known.entry(key(i)).or_insert(next)
        })
        .collect()
}
