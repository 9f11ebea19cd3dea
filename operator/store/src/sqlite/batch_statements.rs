//! Statements that handle many rows. They come in a few sizes, so that each of them stays prepared.

/// Rows of the largest statement. All sizes are powers of two.
const LARGEST: usize = 32;

/// A statement for 1, 2, 4 … rows.
pub(super) struct BatchStatements([String; LARGEST.ilog2() as usize + 1]);

impl BatchStatements {
    /// `text` returns the statement for a number of rows.
    pub fn new(text: impl Fn(usize) -> String) -> Self {
        Self(std::array::from_fn(|power| text(1 << power)))
    }

    /// Returns the statement for this number of rows, which must be one of the sizes.
    pub fn text(&self, rows: usize) -> &str {
        &self.0[rows.ilog2() as usize]
    }
}

/// Splits rows into batches for which there are statements, the largest first.
pub(super) fn batches<T>(mut all: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = 1 << all.len().checked_ilog2()?;
        let (batch, rest) = all.split_at(size.min(LARGEST));
        all = rest;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_the_order_and_have_the_size_of_a_statement() {
        let statements = BatchStatements::new(|rows| "?".repeat(rows));
        for length in 0..100 {
            let all: Vec<_> = (0..length).collect();
            let batches: Vec<_> = batches(&all).collect();
            assert_eq!(batches.concat(), all);
            assert!(
                batches.iter().all(|batch| statements.text(batch.len()).len() == batch.len()),
                "{batches:?}"
            );
            assert!(batches.len() <= length / LARGEST + LARGEST.ilog2() as usize, "{length}: {batches:?}");
        }
    }
}
