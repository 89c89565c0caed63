//! Assignment of least cost (the Hungarian method with potentials, O(n^3)).

/// For each row its column, so that the sum is least; `cost` holds n rows of n. Infinite costs are avoided where that
/// can be.
#[must_use]
pub fn least_assignment(n: usize, cost: &[f64]) -> Vec<usize> {
    // Rows and columns are counted from 1; row and column 0 stand for "none".
    let mut row_price = vec![0.0; n + 1];
    let mut column_price = vec![0.0; n + 1];
    let mut row_of = vec![0; n + 1];
    let mut before = vec![0; n + 1];
    for row in 1..=n {
        row_of[0] = row;
        let mut column = 0;
        let mut slack = vec![f64::MAX; n + 1];
        let mut seen = vec![false; n + 1];
        while row_of[column] != 0 {
            seen[column] = true;
            let at = row_of[column];
            let (mut least, mut next) = (f64::MAX, 0);
            for j in 1..=n {
                if seen[j] {
                    continue;
                }
                let reduced = cost[(at - 1) * n + j - 1].min(HUGE) - row_price[at] - column_price[j];
                if reduced < slack[j] {
                    slack[j] = reduced;
                    before[j] = column;
                }
                if slack[j] < least {
                    least = slack[j];
                    next = j;
                }
            }
            for j in 0..=n {
                if seen[j] {
                    row_price[row_of[j]] += least;
                    column_price[j] -= least;
                } else {
                    slack[j] -= least;
                }
            }
            column = next;
        }
        while column != 0 {
            row_of[column] = row_of[before[column]];
            column = before[column];
        }
    }
    let mut columns = vec![0; n];
    for (column, row) in row_of.iter().enumerate().skip(1) {
        columns[row - 1] = column - 1;
    }
    columns
}

/// Stands for infinity: far above any cost, low enough for sums.
const HUGE: f64 = 1e30;

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    fn least(n: usize, cost: &[f64], row: usize, taken: &mut Vec<usize>) -> f64 {
        if row == n {
            return 0.0;
        }
        let mut best = f64::INFINITY;
        for column in 0..n {
            if !taken.contains(&column) {
                taken.push(column);
                best = best.min(cost[row * n + column] + least(n, cost, row + 1, taken));
                taken.pop();
            }
        }
        best
    }

    #[test]
    fn no_permutation_costs_less() {
        let mut rng = Pcg64::seed_from_u64(7);
        for _ in 0..300 {
            let n = rng.random_range(1..6);
            let cost: Vec<f64> = (0..n * n)
                .map(|_| if rng.random_bool(0.2) { f64::INFINITY } else { f64::from(rng.random_range(0..50)) })
                .collect();
            let columns = least_assignment(n, &cost);
            let mut sorted = columns.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            let sum: f64 = columns.iter().enumerate().map(|(row, column)| cost[row * n + column]).sum();
            assert_eq!(sum, least(n, &cost, 0, &mut Vec::new()));
        }
    }
}
