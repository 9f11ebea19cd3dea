//! The clock of an embedded store: the process's wall clock, which never goes back. While it has been put back, time goes on
//! from what was last told at half its speed: no deadline stands still, and the wall clock catches up.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;

/// Milliseconds since 1970, never fewer than before.
#[derive(Debug)]
pub(super) struct Clock(Mutex<Known>);

/// What was told where the wall clock was last ahead.
#[derive(Debug)]
struct Known {
    ms: i64,
    at: Instant,
}

impl Clock {
    /// A clock that never shows less than `floor`, a time that the store knows already.
    pub fn at_least(floor: i64) -> Self {
        Self(Mutex::new(Known { ms: floor, at: Instant::now() }))
    }

    pub fn now(&self) -> i64 {
        self.by(Timestamp::now().as_millisecond(), Instant::now())
    }

    fn by(&self, wall: i64, at: Instant) -> i64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = at.saturating_duration_since(known.at).as_millis();
        let gone_on = known.ms + i64::try_from(passed / 2).unwrap_or(i64::MAX);
        if wall <= gone_on {
            return gone_on;
        }
        *known = Known { ms: wall, at };
        wall
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_never_goes_behind_what_the_store_knows() {
        let ahead = Timestamp::now().as_millisecond() + 3_600_000;
        let clock = Clock::at_least(ahead);
        assert!(clock.now() >= ahead);
        assert!(Clock::at_least(0).now() >= ahead - 3_600_000);
    }

    #[test]
    fn time_goes_on_while_the_wall_clock_has_been_put_back_until_that_has_caught_up() {
        let clock = Clock::at_least(0);
        let start = Instant::now();
        let told = [(0, 10_000), (1, 9_000), (2, 10_000), (4, 12_000), (5, 13_000), (6, 14_000)]
            .map(|(second, wall)| clock.by(wall, start + Duration::from_secs(second)));
        assert_eq!(told, [10_000, 10_500, 11_000, 12_000, 13_000, 14_000]);
    }
}
