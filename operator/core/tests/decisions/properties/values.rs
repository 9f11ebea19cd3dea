//! Strategies for the values that an input is made of.

use dalsegno_model::{Counters, GatewayHeartbeat, Identity, Lifecycle, RunOutcome, Verdict};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::sample::select;

use crate::fixtures::{accepted, now};

pub fn instant() -> impl Strategy<Value = Timestamp> {
    // The first and the last time that Kubernetes can write.
    let first: Timestamp = "0001-01-01T00:00:00Z".parse().unwrap();
    let near = |ms: i64| now() - SignedDuration::from_millis(ms);
    prop_oneof![
        8 => (0..70_000_i64).prop_map(near),
        4 => (0..4_000_000_i64).prop_map(near),
        1 => (-60_000..0_i64).prop_map(near),
        1 => select(vec![first, Timestamp::UNIX_EPOCH, Timestamp::MAX]),
    ]
}

pub fn counters() -> impl Strategy<Value = Counters> {
    let count = || prop_oneof![8 => 0..6_i32, 1 => any::<i32>()];
    (count(), count(), count(), count()).prop_map(|(crashes, base, disruptions, in_a_row)| Counters {
        recovery_attempts: crashes,
        recovery_attempts_base: base,
        attempts_without_progress: in_a_row,
        disruptions,
        disruptions_base: base,
        disruptions_without_progress: in_a_row,
    })
}

pub fn beat() -> impl Strategy<Value = GatewayHeartbeat> {
    (0..6_000_i64, instant(), instant()).prop_map(|(last, since, gap_from)| GatewayHeartbeat {
        last: now() - SignedDuration::from_millis(last),
        since,
        gap_from,
    })
}

pub fn verdict() -> impl Strategy<Value = Identity> {
    let verdicts = vec![Verdict::Accepted, Verdict::Allowed, Verdict::Refused];
    (select(vec!['a', 'b']), select(verdicts))
        .prop_map(|(image, verdict)| Identity { verdict, ..accepted(image) })
}

pub fn outcome() -> impl Strategy<Value = RunOutcome> {
    select(vec![RunOutcome::Succeeded, RunOutcome::Failed, RunOutcome::Cancelled])
}

pub fn lifecycle() -> impl Strategy<Value = Lifecycle> {
    prop_oneof![8 => Just(Lifecycle::Live), 1 => select(vec![Lifecycle::Finished, Lifecycle::Deleted, Lifecycle::Abandoned])]
}

pub fn text() -> impl Strategy<Value = String> {
    let fatal = Just(r#"{"dalsegno":1,"class":"fatal","message":"no"}"#.to_owned());
    prop_oneof!["\\PC{0,40}", ".{0,900}", fatal]
}
