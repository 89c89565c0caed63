//! Greatest flow through a network with whole capacities (Dinic).

/// A capacity that never limits.
pub const UNLIMITED: u64 = u64::MAX / 4;

#[derive(Clone, Debug)]
struct Edge {
    to: usize,
    room: u64,
}

/// Edges stand in pairs: one and its way back.
#[derive(Clone, Debug, Default)]
pub struct Network {
    edges: Vec<Edge>,
    from: Vec<Vec<usize>>,
}

impl Network {
    /// Of so many places and no edges.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self { edges: Vec::new(), from: vec![Vec::new(); places] }
    }

    /// An edge that carries up to `room`.
    pub fn connect(&mut self, a: usize, b: usize, room: u64) {
        self.from[a].push(self.edges.len());
        self.edges.push(Edge { to: b, room });
        self.from[b].push(self.edges.len());
        self.edges.push(Edge { to: a, room: 0 });
    }

    /// The most that can go from `source` to `sink`; uses the network up.
    pub fn greatest(&mut self, source: usize, sink: usize) -> u64 {
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

    /// Edges from the source to each place, over edges with room.
    fn levels(&self, source: usize) -> Vec<usize> {
        let mut level = vec![usize::MAX; self.from.len()];
        level[source] = 0;
        let mut queue = std::collections::VecDeque::from([source]);
        while let Some(place) = queue.pop_front() {
            for edge in self.from[place].iter().map(|e| &self.edges[*e]) {
                if edge.room > 0 && level[edge.to] == usize::MAX {
                    level[edge.to] = level[place] + 1;
                    queue.push_back(edge.to);
                }
            }
        }
        level
    }

    /// Sends up to `most` on along shortest ways; the networks here are only a few levels deep.
    fn push(&mut self, place: usize, sink: usize, most: u64, level: &[usize], next: &mut [usize]) -> u64 {
        if place == sink {
            return most;
        }
        while next[place] < self.from[place].len() {
            let edge = self.from[place][next[place]];
            let Edge { to, room } = self.edges[edge];
            if room > 0 && level[to] == level[place] + 1 {
                let pushed = self.push(to, sink, most.min(room), level, next);
                if pushed > 0 {
                    self.edges[edge].room -= pushed;
                    self.edges[edge ^ 1].room += pushed;
                    return pushed;
                }
            }
            next[place] += 1;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    /// The greatest flow is the least cut, of all ways to part the places.
    #[test]
    fn flow_is_the_least_cut() {
        let mut rng = Pcg64::seed_from_u64(3);
        for _ in 0..300 {
            let places = rng.random_range(2..7);
            let edges: Vec<(usize, usize, u64)> = (0..rng.random_range(1..14))
                .map(|_| (rng.random_range(0..places), rng.random_range(0..places), rng.random_range(0..9)))
                .filter(|(a, b, _)| a != b)
                .collect();
            let mut network = Network::new(places);
            for (a, b, room) in &edges {
                network.connect(*a, *b, *room);
            }
            let cut = |side: usize| {
                let inside = |place: &usize| side >> *place & 1 == 1;
                edges.iter().filter(|(a, b, _)| inside(a) && !inside(b)).map(|e| e.2).sum::<u64>()
            };
            let sides = (0..1_usize << places).filter(|s| s & 1 == 1 && s >> (places - 1) & 1 == 0);
            assert_eq!(network.greatest(0, places - 1), sides.map(cut).min().unwrap());
        }
    }
}
