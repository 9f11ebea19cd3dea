//! When people are notified of a hold.

use dalsegno_core::Announcement;
use dalsegno_crds::Cause;

use crate::fixtures::{Given, neutral, run};

/// Three attempts in a row never attached, which holds the run for a minute.
fn cannot_start(turn: i32) -> Given {
    let given = run().reserved(4).head(turn);
    let attempts = [3, 2, 1].map(|number| neutral(number, Cause::ImageUnavailable).ago(5));
    attempts.into_iter().fold(given, Given::after)
}

fn key(given: &Given) -> Option<String> {
    match given.decide().announcement? {
        Announcement::Run(_, notice) => Some(notice.key),
        object @ Announcement::Object(_) => panic!("{object:?}"),
    }
}

#[test]
fn a_hold_that_ends_by_itself_is_announced_once_until_the_run_has_made_progress() {
    let first = key(&cannot_start(7));
    assert_eq!(first.as_deref(), Some("CannotStart, budget 0, turn 7"));
    let mut again = cannot_start(7);
    (again.row.announced, again.row.epoch) = (first.clone(), 9);
    assert_eq!(key(&again), None, "it comes back without progress");
    let mut later = cannot_start(200);
    later.row.announced = first;
    assert_eq!(key(&later).as_deref(), Some("CannotStart, budget 0, turn 200"));
}
