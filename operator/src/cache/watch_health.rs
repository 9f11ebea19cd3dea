//! Whether the watches of the API server still deliver: an operator that is connected but no longer told of changes acts on
//! old facts, and only a restart helps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::mutex::lock;

/// A watch is silent for about a minute at most: the API server sends a bookmark each minute.
const LONGEST_SILENCE: Duration = Duration::from_mins(5);
/// The operator probes the API server every two seconds. A longer pause between two answers is an outage.
const OUTAGE: Duration = Duration::from_secs(30);

/// When the API server was last heard. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    /// When each watch was last heard, by the path of its URL.
    watches: HashMap<String, Instant>,
    /// When the API server last answered anything, and since when it has done so without an outage.
    answers: Option<(Instant, Instant)>,
}

impl WatchHealth {
    /// Records that the watch with this path was heard.
    pub fn heard(&self, path: &str, now: Instant) {
        let mut heard = lock(&self.0);
        match heard.watches.get_mut(path) {
            Some(at) => *at = now,
            None => drop(heard.watches.insert(path.to_owned(), now)),
        }
    }

    /// Records an answer of the API server.
    pub fn answered(&self, now: Instant) {
        let mut heard = lock(&self.0);
        let since = heard.answers.filter(|(last, _)| now.duration_since(*last) < OUTAGE);
        heard.answers = Some((now, since.map_or(now, |(_, since)| since)));
    }

    /// How long ago the watches were last heard, by kind: the last part of the path. Of several watches of a kind, the one
    /// that is silent for the longest time counts.
    pub fn ages(&self, now: Instant) -> HashMap<String, Duration> {
        let mut ages: HashMap<String, Duration> = HashMap::new();
        for (path, at) in &lock(&self.0).watches {
            let kind = path.rsplit('/').next().unwrap_or_default();
            let age = ages.entry(kind.to_owned()).or_default();
            *age = now.duration_since(*at).max(*age);
        }
        ages
    }

    /// Whether a watch has been silent for too long, although the API server answered all the time. During an outage of
    /// the API server a restart would not help.
    pub fn is_blind(&self, now: Instant) -> bool {
        let answers = lock(&self.0).answers;
        let is_available = answers.is_some_and(|(last, since)| {
            now.duration_since(last) < OUTAGE && now.duration_since(since) >= LONGEST_SILENCE
        });
        is_available && self.ages(now).values().any(|age| *age >= LONGEST_SILENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_watch_makes_the_operator_blind_unless_the_api_server_was_away() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let health = WatchHealth::default();
        let answer_until =
            |from: u64, to: u64| (from..=to).step_by(2).for_each(|second| health.answered(at(second)));
        health.heard("/api/v1/pods", at(0));
        health.heard("/api/v1/nodes", at(0));
        answer_until(0, 290);
        assert!(!health.is_blind(at(290)));
        health.heard("/api/v1/nodes", at(290));
        answer_until(292, 302);
        assert!(health.is_blind(at(302)), "the watch of pods is silent");
        assert_eq!(health.ages(at(302))["pods"], Duration::from_secs(302));
        assert_eq!(health.ages(at(302))["nodes"], Duration::from_secs(12));
        assert!(!health.is_blind(at(340)), "the API server does not answer any more");
        answer_until(400, 440);
        assert!(!health.is_blind(at(440)), "it was away");
        health.heard("/api/v1/pods", at(441));
        health.heard("/api/v1/nodes", at(441));
        answer_until(442, 720);
        assert!(!health.is_blind(at(720)));
    }
}
