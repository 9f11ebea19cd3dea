//! Samples, and the ratios computed from them.

use std::time::Duration;

/// Measured durations of one operation.
#[derive(Debug, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Adds a sample.
    pub fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// The duration that this share of the samples does not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// The ratio to `floor`, at the same quantile of both.
    pub fn over(&self, floor: &Self, share: f64) -> f64 {
        self.quantile(share).as_secs_f64() / floor.quantile(share).as_secs_f64()
    }
}

/// A ratio as text.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

/// A duration as text, to show the order of magnitude.
pub fn about(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// Prints a Markdown table.
pub fn print_table<const COLUMNS: usize>(title: &str, head: [&str; COLUMNS], rows: &[[String; COLUMNS]]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or_default()
    };
    let line = |cells: [&str; COLUMNS]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| format!("{cell:0$}", width(column)));
        println!("| {} |", padded.collect::<Vec<_>>().join(" | "));
    };
    println!("\n{title}\n");
    line(head);
    println!("|{}|", (0..COLUMNS).map(|column| "-".repeat(width(column) + 2)).collect::<Vec<_>>().join("|"));
    for row in rows {
        line(row.each_ref().map(String::as_str));
    }
}
