//! When a run is looked at again although nothing woke it. A wake-up that was lost then costs minutes, not for ever.

use std::time::Duration;

use jiff::Timestamp;

/// Every run is looked at once in this time.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(600);

/// Time until the next look at the run with this UID. Each run has its own phase within the interval, a hash of the
/// UID: after a start of the operator the looks at all runs are spread over the interval, and stay spread.
pub fn next_look(uid: &str, now: Timestamp) -> Duration {
    let interval = u64::try_from(RESYNC_INTERVAL.as_millis()).unwrap_or(u64::MAX);
    let now = u64::try_from(now.as_millisecond()).unwrap_or_default();
    Duration::from_millis(interval - (now % interval + fnv(uid) % interval) % interval)
}

/// A hash (FNV-1a, 64 bits).
fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_790_000_000_000 + millis).unwrap_or_default()
    }

    #[test]
    fn each_run_is_looked_at_once_in_ten_minutes_at_its_own_phase() {
        let first = next_look("uid-1", at(0));
        assert!(first > Duration::ZERO && first <= RESYNC_INTERVAL);
        let later = i64::try_from(first.as_millis()).unwrap_or_default();
        assert_eq!(next_look("uid-1", at(later)), RESYNC_INTERVAL);
        assert_eq!(next_look("uid-1", at(later - 7)), Duration::from_millis(7));
        assert_ne!(first, next_look("uid-2", at(0)));
    }

    #[test]
    fn the_looks_at_many_runs_are_spread() {
        let mut minutes = [0; 10];
        for run in 0..10_000 {
            let delay = next_look(&format!("5d1f9a0e-0000-4000-8000-{run:012}"), at(0));
            minutes[usize::try_from((delay.as_secs() / 60).min(9)).unwrap_or_default()] += 1;
        }
        assert!(minutes.iter().all(|looks| (700..1_300).contains(looks)), "{minutes:?}");
    }
}
