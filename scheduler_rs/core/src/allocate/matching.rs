//! Bottleneck bipartite matching: the least threshold at which every row can be matched.

/// Identical rows or columns, such as the nodes of one site: an index into the costs, and a count.
pub type SiteCount = (u32, u32);

/// Working memory of [`Matcher::bottleneck`], kept between calls.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    /// Matched units of each pair, row-major.
    flow: Vec<u32>,
    /// Free units of each column.
    free: Vec<u32>,
    /// Unmatched units of each row.
    left: Vec<u32>,
    /// For each column not reached, the least cost from a reached row, and that row.
    least: Vec<f64>,
    from: Vec<usize>,
    reached: Vec<bool>,
    /// The column by which a row was reached.
    through: Vec<Option<usize>>,
    /// Reached rows to scan.
    fresh: Vec<usize>,
}

impl Matcher {
    /// The least `v` such that every row can be matched to a column of its own at a cost of at most `v`; columns may
    /// stay free. 0 without rows, infinite with fewer columns than rows. `cost(row, column)` takes the indices.
    ///
    /// Rows are matched along augmenting paths of edges within the threshold. Where there is none, the threshold rises
    /// to the cheapest edge that leaves the alternating tree, since every matching needs one of these. So it never
    /// exceeds the result.
    pub fn bottleneck(&mut self, rows: &[SiteCount], columns: &[SiteCount], cost: impl Fn(u32, u32) -> f64) -> f64 {
        let units = |side: &[SiteCount]| side.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        if units(rows) > units(columns) {
            return f64::INFINITY;
        }
        let cheapest = |row: u32| columns.iter().map(|(column, _)| cost(row, *column)).fold(f64::INFINITY, f64::min);
        let used = || rows.iter().filter(|(_, count)| *count > 0);
        let mut threshold = used().map(|(row, _)| cheapest(*row)).fold(0.0, f64::max);
        self.start(rows, columns, threshold, &cost);
        for row in 0..rows.len() {
            while self.left[row] > 0 {
                threshold = self.augment(row, rows, columns, threshold, &cost);
            }
        }
        threshold
    }

    /// Greedy matching within the threshold.
    fn start(&mut self, rows: &[SiteCount], columns: &[SiteCount], threshold: f64, cost: &impl Fn(u32, u32) -> f64) {
        let width = columns.len();
        self.flow.clear();
        self.flow.resize(rows.len() * width, 0);
        self.free.clear();
        self.free.extend(columns.iter().map(|(_, count)| count));
        self.left.clear();
        for (row, (index, count)) in rows.iter().enumerate() {
            let mut left = *count;
            for (column, (other, _)) in columns.iter().enumerate() {
                if left == 0 {
                    break;
                }
                if self.free[column] > 0 && cost(*index, *other) <= threshold {
                    let more = left.min(self.free[column]);
                    self.flow[row * width + column] = more;
                    self.free[column] -= more;
                    left -= more;
                }
            }
            self.left.push(left);
        }
    }

    /// Augments the matching of `row`; returns the new threshold.
    fn augment(
        &mut self,
        row: usize,
        rows: &[SiteCount],
        columns: &[SiteCount],
        mut threshold: f64,
        cost: &impl Fn(u32, u32) -> f64,
    ) -> f64 {
        let width = columns.len();
        self.least.clear();
        self.least.resize(width, f64::INFINITY);
        self.from.clear();
        self.from.resize(width, row);
        self.reached.clear();
        self.reached.resize(width, false);
        self.through.clear();
        self.through.resize(rows.len(), None);
        self.fresh.clear();
        self.fresh.push(row);
        loop {
            while let Some(at) = self.fresh.pop() {
                for (column, (other, _)) in columns.iter().enumerate() {
                    let value = cost(rows[at].0, *other);
                    if self.reached[column] || value >= self.least[column] {
                        continue;
                    }
                    self.least[column] = value;
                    self.from[column] = at;
                    if value <= threshold && self.reach(column, row, width) {
                        return threshold;
                    }
                }
            }
            let open = |column: &usize| !self.reached[*column];
            threshold = (0..width).filter(open).map(|column| self.least[column]).fold(f64::INFINITY, f64::min);
            if threshold.is_infinite() {
                // Only with infinite costs: there are enough columns, so one is always left to reach.
                self.left[row] = 0;
                return threshold;
            }
            for column in 0..width {
                if !self.reached[column] && self.least[column] <= threshold && self.reach(column, row, width) {
                    return threshold;
                }
            }
        }
    }

    /// Extends the alternating tree from a column to the rows matched to it; true where the column was free and `row`
    /// was matched.
    fn reach(&mut self, column: usize, row: usize, width: usize) -> bool {
        self.reached[column] = true;
        if self.free[column] > 0 {
            self.push(row, column, width);
            return true;
        }
        for other in 0..self.through.len() {
            if other != row && self.through[other].is_none() && self.flow[other * width + column] > 0 {
                self.through[other] = Some(column);
                self.fresh.push(other);
            }
        }
        false
    }

    /// Augments along the path from `row` to the free column.
    fn push(&mut self, row: usize, column: usize, width: usize) {
        let mut more = self.left[row].min(self.free[column]);
        let mut at = self.from[column];
        while let Some(through) = self.through[at] {
            more = more.min(self.flow[at * width + through]);
            at = self.from[through];
        }
        self.free[column] -= more;
        self.left[row] -= more;
        let mut to = column;
        loop {
            let at = self.from[to];
            self.flow[at * width + to] += more;
            let Some(through) = self.through[at] else { break };
            self.flow[at * width + through] -= more;
            to = through;
        }
    }
}

/// [`Matcher::bottleneck`] of a rectangular matrix whose smaller side is matched completely; 0 where it is empty.
#[must_use]
pub fn bottleneck(cost: &[Vec<f64>]) -> f64 {
    let side = |count: usize| (0..count as u32).map(|i| (i, 1)).collect::<Vec<SiteCount>>();
    let (rows, columns) = (side(cost.len()), side(cost.first().map_or(0, Vec::len)));
    let mut matcher = Matcher::default();
    if rows.len() <= columns.len() {
        matcher.bottleneck(&rows, &columns, |i, j| cost[i as usize][j as usize])
    } else {
        matcher.bottleneck(&columns, &rows, |j, i| cost[i as usize][j as usize])
    }
}
