//! The clock of an embedded store: the process's wall clock, which never goes back.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;

/// Milliseconds since 1970, never fewer than before.
#[derive(Debug)]
pub(super) struct Clock(AtomicI64);

impl Clock {
    /// A clock that never shows less than `floor`, a time that the store knows already.
    pub fn at_least(floor: i64) -> Self {
        Self(AtomicI64::new(floor))
    }

    pub fn now(&self) -> i64 {
        let wall = Timestamp::now().as_millisecond();
        self.0.fetch_max(wall, Ordering::Relaxed).max(wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_behind_what_the_store_knows() {
        let ahead = Timestamp::now().as_millisecond() + 3_600_000;
        let clock = Clock::at_least(ahead);
        assert_eq!(clock.now(), ahead);
        assert!(Clock::at_least(0).now() >= ahead - 3_600_000);
    }
}
