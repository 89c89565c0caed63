//! Maximum flow through a network with integer capacities (Dinic 1970).

/// An unlimited capacity.
pub const UNLIMITED: u64 = u64::MAX / 4;

#[derive(Clone, Debug)]
struct Edge {
    to: usize,
    capacity: u64,
}

/// Edges are stored in pairs: each with its reverse edge.
#[derive(Clone, Debug, Default)]
pub struct Network {
    edges: Vec<Edge>,
    from: Vec<Vec<usize>>,
}

impl Network {
    /// A network of so many vertices without edges.
    #[must_use]
    pub fn new(vertices: usize) -> Self {
        Self { edges: Vec::new(), from: vec![Vec::new(); vertices] }
    }

    /// Adds an edge of this capacity.
    pub fn add_edge(&mut self, a: usize, b: usize, capacity: u64) {
        self.from[a].push(self.edges.len());
        self.edges.push(Edge { to: b, capacity });
        self.from[b].push(self.edges.len());
        self.edges.push(Edge { to: a, capacity: 0 });
    }

    /// Maximum flow from `source` to `sink`; leaves the residual network.
    pub fn maximum_flow(&mut self, source: usize, sink: usize) -> u64 {
        let mut total = 0;
        loop {
            let level = self.levels(source);
            if level[sink] == usize::MAX {
                return total;
            }
            let mut next = vec![0; self.from.len()];
            loop {
                let pushed = self.push(source, sink, UNLIMITED, &level, &mut next);
                if pushed == 0 {
                    break;
                }
                total += pushed;
            }
        }
    }

    /// Distance of each vertex from the source in the residual network, in edges.
    fn levels(&self, source: usize) -> Vec<usize> {
        let mut level = vec![usize::MAX; self.from.len()];
        level[source] = 0;
        let mut queue = std::collections::VecDeque::from([source]);
        while let Some(vertex) = queue.pop_front() {
            for edge in self.from[vertex].iter().map(|e| &self.edges[*e]) {
                if edge.capacity > 0 && level[edge.to] == usize::MAX {
                    level[edge.to] = level[vertex] + 1;
                    queue.push_back(edge.to);
                }
            }
        }
        level
    }

    /// Augments by up to `most` along a shortest path. Recursive: the networks here are only a few levels deep.
    fn push(&mut self, vertex: usize, sink: usize, most: u64, level: &[usize], next: &mut [usize]) -> u64 {
        if vertex == sink {
            return most;
        }
        while next[vertex] < self.from[vertex].len() {
            let edge = self.from[vertex][next[vertex]];
            let Edge { to, capacity } = self.edges[edge];
            if capacity > 0 && level[to] == level[vertex] + 1 {
                let pushed = self.push(to, sink, most.min(capacity), level, next);
                if pushed > 0 {
                    self.edges[edge].capacity -= pushed;
                    self.edges[edge ^ 1].capacity += pushed;
                    return pushed;
                }
            }
            next[vertex] += 1;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    /// The maximum flow equals the minimum cut over all bipartitions of the vertices.
    #[test]
    fn maximum_flow_is_the_minimum_cut() {
        let mut rng = Pcg64::seed_from_u64(3);
        for _ in 0..300 {
            let vertices = rng.random_range(2..7);
            let edges: Vec<(usize, usize, u64)> = (0..rng.random_range(1..14))
                .map(|_| (rng.random_range(0..vertices), rng.random_range(0..vertices), rng.random_range(0..9)))
                .filter(|(a, b, _)| a != b)
                .collect();
            let mut network = Network::new(vertices);
            for (a, b, capacity) in &edges {
                network.add_edge(*a, *b, *capacity);
            }
            let cut = |side: usize| {
                let inside = |vertex: &usize| side >> *vertex & 1 == 1;
                edges.iter().filter(|(a, b, _)| inside(a) && !inside(b)).map(|e| e.2).sum::<u64>()
            };
            let sides = (0..1_usize << vertices).filter(|s| s & 1 == 1 && s >> (vertices - 1) & 1 == 0);
            assert_eq!(network.maximum_flow(0, vertices - 1), sides.map(cut).min().unwrap());
        }
    }
}
