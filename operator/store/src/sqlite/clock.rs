//! The clock of an embedded store: the process's wall clock, made monotonic. If the wall clock is set back, the clock
//! runs on from its last reading at half speed, until the wall clock has caught up. So no deadline stops.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;

/// Milliseconds since 1970, never less than before.
#[derive(Debug)]
pub(super) struct Clock(Mutex<WallTime>);

/// The last reading of the wall clock that was later than all before.
#[derive(Debug)]
struct WallTime {
    ms: i64,
    at: Instant,
}

impl Clock {
    /// A clock that never shows a time before `floor`, the latest time in the store.
    pub fn at_least(floor: i64) -> Self {
        Self(Mutex::new(WallTime { ms: floor, at: Instant::now() }))
    }

    pub fn now(&self) -> i64 {
        self.read(Timestamp::now().as_millisecond(), Instant::now())
    }

    fn read(&self, wall: i64, at: Instant) -> i64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = at.saturating_duration_since(last.at).as_millis();
        let slowed = last.ms + i64::try_from(passed / 2).unwrap_or(i64::MAX);
        if wall <= slowed {
            return slowed;
        }
        *last = WallTime { ms: wall, at };
        wall
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_is_never_behind_the_store() {
        let ahead = Timestamp::now().as_millisecond() + 3_600_000;
        let clock = Clock::at_least(ahead);
        assert!(clock.now() >= ahead);
        assert!(Clock::at_least(0).now() >= ahead - 3_600_000);
    }

    #[test]
    fn a_clock_runs_at_half_speed_until_a_wall_clock_that_was_set_back_has_caught_up() {
        let clock = Clock::at_least(0);
        let start = Instant::now();
        let times = [(0, 10_000), (1, 9_000), (2, 10_000), (4, 12_000), (5, 13_000), (6, 14_000)]
            .map(|(second, wall)| clock.read(wall, start + Duration::from_secs(second)));
        assert_eq!(times, [10_000, 10_500, 11_000, 12_000, 13_000, 14_000]);
    }
}
