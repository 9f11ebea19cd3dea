//! Times and ages for people.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// How long ago, as kubectl writes it: `42s`, `7m`, `3h`, `5d`. A time to come is `0s`.
pub fn age(now: Timestamp, since: Timestamp) -> String {
    duration(now.duration_since(since).as_secs())
}

/// A number of seconds, as kubectl writes an age.
pub fn duration(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A time to the second, in UTC.
pub fn utc(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A time, and how far it is from now.
pub fn with_distance(now: Timestamp, at: Timestamp) -> String {
    let ahead = at.duration_since(now).as_secs();
    if ahead > 0 {
        format!("{} (in {})", utc(at), duration(ahead))
    } else {
        format!("{} ({} ago)", utc(at), age(now, at))
    }
}

/// The same of a time of the API server; a dash for none.
pub fn of(now: Timestamp, at: Option<&Time>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| with_distance(now, at.0))
}

/// An age of a time of the API server; a dash for none.
pub fn age_of(now: Timestamp, at: Option<&Time>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| age(now, at.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, shown) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (172_800, "2d"),
        ] {
            assert_eq!(duration(seconds), shown);
        }
    }

    #[test]
    fn a_time_says_how_far_it_is() {
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        assert_eq!(
            with_distance(now, "2026-11-26T11:56:00Z".parse().unwrap()),
            "2026-11-26 11:56:00 UTC (4m ago)"
        );
        assert_eq!(
            with_distance(now, "2026-11-26T12:00:30Z".parse().unwrap()),
            "2026-11-26 12:00:30 UTC (in 30s)"
        );
    }
}
