//! Popularity: the distribution of requests over clients.

use std::sync::Arc;

use crate::random::{Random, exp, ln};

/// The popularity of each of many clients.
///
/// With an exponent `s`, the share of the client of rank `k` is proportional to `1 / k^s` (Zipf): 0 makes all alike, and
/// around 1 is typical of users.
#[derive(Clone, Debug, PartialEq)]
pub struct Popularity {
    clients: u32,
    exponent: f64,
}

impl Popularity {
    /// A popularity for this many clients, clamped to 1 and [`MOST_CLIENTS`](super::MOST_CLIENTS). The exponent is clamped
    /// to 0 and 5.
    #[must_use]
    pub const fn new(clients: u32, exponent: f64) -> Popularity {
        let clients = if clients == 0 {
            1
        } else if clients > super::MOST_CLIENTS {
            super::MOST_CLIENTS
        } else {
            clients
        };
        let exponent = if exponent > 5.0 {
            5.0
        } else if exponent > 0.0 {
            exponent
        } else {
            0.0
        };
        Popularity { clients, exponent }
    }

    /// The number of clients.
    #[must_use]
    pub const fn clients(&self) -> u32 {
        self.clients
    }

    /// The exponent of their popularity.
    #[must_use]
    pub const fn exponent(&self) -> f64 {
        self.exponent
    }

    fn weight(&self, rank: u32) -> f64 {
        if self.exponent == 0.0 { 1.0 } else { exp(-self.exponent * ln(f64::from(rank))) }
    }

    /// The sum of all weights, added from the smallest to keep precision.
    fn total(&self) -> f64 {
        (1..=self.clients).rev().map(|rank| self.weight(rank)).sum()
    }

    /// Groups of clients with nearly equal shares: the size, and the share of each client. There are few groups even for
    /// many clients.
    pub(crate) fn groups(&self) -> Vec<(u32, f64)> {
        if self.exponent == 0.0 {
            return vec![(self.clients, 1.0 / f64::from(self.clients))];
        }
        let total = self.total();
        let mut groups = Vec::new();
        let mut rank = 1;
        while rank <= self.clients {
            let size = (rank / 16).max(1).min(self.clients - rank + 1);
            let weight: f64 = (rank..rank + size).map(|rank| self.weight(rank)).sum();
            groups.push((size, weight / f64::from(size) / total));
            rank += size;
        }
        groups
    }

    pub(crate) fn draws(&self) -> Draws {
        if self.exponent == 0.0 { Draws::Alike(self.clients) } else { Draws::Table(self.table()) }
    }

    /// Walker's alias table, by Vose's method: each column is one client up to a threshold and another above it, so that a
    /// draw reads one column for any number of clients.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "columns hold 0 to 2^32")]
    fn table(&self) -> Arc<[AliasColumn]> {
        const FULL: f64 = 4_294_967_296.0;
        let total = self.total();
        let scale = f64::from(self.clients) / total;
        let mut heights: Vec<f64> = (1..=self.clients).map(|rank| self.weight(rank) * scale).collect();
        let mut columns: Vec<AliasColumn> =
            (0..self.clients).map(|client| AliasColumn { threshold: u32::MAX, other: client }).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) = (0..self.clients).partition(|&n| heights[n as usize] < 1.0);
        while let (Some(&low), Some(&high)) = (small.last(), large.last()) {
            small.pop();
            columns[low as usize] = AliasColumn { threshold: (heights[low as usize] * FULL) as u32, other: high };
            heights[high as usize] -= 1.0 - heights[low as usize];
            if heights[high as usize] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        columns.into()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AliasColumn {
    threshold: u32,
    other: u32,
}

/// Random clients.
#[derive(Clone, Debug)]
pub(crate) enum Draws {
    Alike(u32),
    Table(Arc<[AliasColumn]>),
}

impl Draws {
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are fewer than 2^32 clients; the lower half of the bits"
    )]
    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Draws::Alike(clients) => random.below(u64::from(*clients)) as u32,
            Draws::Table(columns) => {
                let bits = random.bits();
                let number = ((u128::from(bits) * columns.len() as u128) >> 64) as usize;
                // The upper bits have chosen the column. The lower bits are practically independent of them.
                let column = &columns[number];
                if (bits as u32) < column.threshold { number as u32 } else { column.other }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::contract::seed::seed;

    use super::*;

    #[test]
    fn shares_follow_the_law() {
        let popularity = Popularity::new(1_000, 1.0);
        let draws = popularity.draws();
        let mut random = Random::seeded(seed(3));
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..1_000_000 {
            counts[draws.draw(&mut random) as usize] += 1;
        }
        let harmonic: f64 = (1..=1_000).map(|k| 1.0 / f64::from(k)).sum();
        for rank in [1_u32, 2, 3, 10, 100, 500] {
            let expected = 1_000_000.0 / f64::from(rank) / harmonic;
            let counted = f64::from(counts[rank as usize - 1]);
            assert!((counted - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {counted}, expected {expected}");
        }
    }

    #[test]
    fn groups_are_all_clients_and_all_of_the_traffic() {
        for (clients, exponent) in [(1, 1.0), (17, 0.0), (1_000, 0.8), (100_000, 1.2)] {
            let groups = Popularity::new(clients, exponent).groups();
            assert_eq!(groups.iter().map(|(size, _)| size).sum::<u32>(), clients);
            let traffic: f64 = groups.iter().map(|(size, share)| f64::from(*size) * share).sum();
            assert!((traffic - 1.0).abs() < 1e-9, "{traffic}");
            assert!(groups.len() < 250);
        }
    }
}
