//! A set of small numbers, taken out in order.

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    count: usize,
}

impl Bits {
    pub fn new(most: usize) -> Self {
        Self { words: vec![0; most.div_ceil(64)], count: 0 }
    }

    #[inline]
    pub fn insert(&mut self, number: usize) {
        let (word, bit) = (&mut self.words[number / 64], 1 << (number % 64));
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Takes the least out; none is below word `at`, which moves along.
    #[inline]
    pub fn take_first(&mut self, at: &mut usize) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        while self.words[*at] == 0 {
            *at += 1;
        }
        let bit = self.words[*at].trailing_zeros() as usize;
        self.remove(*at, bit)
    }

    /// Takes the greatest out; none is above word `at`, which moves along.
    #[inline]
    pub fn take_last(&mut self, at: &mut usize) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        while self.words[*at] == 0 {
            *at -= 1;
        }
        let bit = 63 - self.words[*at].leading_zeros() as usize;
        self.remove(*at, bit)
    }

    fn remove(&mut self, word: usize, bit: usize) -> Option<usize> {
        self.words[word] &= !(1 << bit);
        self.count -= 1;
        Some(64 * word + bit)
    }
}
