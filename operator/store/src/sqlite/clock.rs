//! The clock of an embedded store: the process's wall clock, which never goes back. While it has been put back, time goes on
//! from what was last told, so that no deadline stands still.

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
        self.by(Timestamp::now().as_millisecond())
    }

    fn by(&self, wall: i64) -> i64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let gone_on = known.ms + i64::try_from((now - known.at).as_millis()).unwrap_or(i64::MAX);
        if wall <= gone_on {
            return gone_on;
        }
        *known = Known { ms: wall, at: now };
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
    fn time_goes_on_while_the_wall_clock_has_been_put_back() {
        let clock = Clock::at_least(0);
        assert_eq!(clock.by(10_000_000), 10_000_000);
        std::thread::sleep(Duration::from_millis(20));
        let later = clock.by(5_000_000);
        assert!((10_000_020..10_010_000).contains(&later), "{later}");
        assert_eq!(clock.by(20_000_000), 20_000_000, "until it has caught up");
    }
}
