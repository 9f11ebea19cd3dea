//! Statements for several things at once, in a few sizes, so that each stays prepared.

/// Things in the largest of them; a power of two, like all sizes.
const LARGEST: usize = 32;

/// A statement for 1, 2, 4 … things.
pub(super) struct BySize([String; LARGEST.ilog2() as usize + 1]);

impl BySize {
    pub fn new(text: impl Fn(usize) -> String) -> Self {
        Self(std::array::from_fn(|power| text(1 << power)))
    }

    /// For so many, which is one of the sizes.
    pub fn text(&self, things: usize) -> &str {
        &self.0[things.ilog2() as usize]
    }
}

/// Cuts into pieces of the sizes that there are statements for, the largest first.
pub(super) fn by_size<T>(mut all: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = 1 << all.len().checked_ilog2()?;
        let (some, rest) = all.split_at(size.min(LARGEST));
        all = rest;
        Some(some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_there_in_order_and_in_pieces_that_there_are_statements_for() {
        let statements = BySize::new(|things| "?".repeat(things));
        for length in 0..100 {
            let all: Vec<_> = (0..length).collect();
            let pieces: Vec<_> = by_size(&all).collect();
            assert_eq!(pieces.concat(), all);
            assert!(pieces.iter().all(|some| statements.text(some.len()).len() == some.len()), "{pieces:?}");
            assert!(pieces.len() <= length / LARGEST + LARGEST.ilog2() as usize, "{length}: {pieces:?}");
        }
    }
}
