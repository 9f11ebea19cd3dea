//! A boundary as it is sent: what is parsed and written again is the same JSON.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use dalsegno_protocol::{CommitRequest, Outcome, ParkMode};
use serde_json::{Value, json};

const ID: &str = "0197b1c2-7d1e-4c1a-9d0f-3f4f0c5b6a71";

fn boundary(outcome: Value) -> Value {
    json!({ "commitId": ID, "state": { "turn": 1 }, "inbox": [3], "outcome": outcome })
}

fn parsed(json: &Value) -> CommitRequest {
    serde_json::from_str(&json.to_string()).unwrap()
}

#[test]
fn a_boundary_that_parks_is_the_same_after_a_round_trip() {
    let all = json!({ "park": { "parkId": ID, "on": ["pay", "ship"] } });
    let any = json!({ "park": { "parkId": ID, "on": ["pay"], "mode": "any" } });
    let none = json!({ "park": { "parkId": ID } });
    for (outcome, on, mode) in [(all, 2, ParkMode::All), (any, 1, ParkMode::Any), (none, 0, ParkMode::All)] {
        let sent = boundary(outcome);
        let request = parsed(&sent);
        let Some(Outcome::Park(park)) = &request.outcome else { panic!("{request:?}") };
        assert_eq!((park.park_id.to_string().as_str(), park.on.len(), park.mode), (ID, on, mode));
        assert_eq!(serde_json::to_value(&request).unwrap(), sent);
    }
}

#[test]
fn a_boundary_that_ends_in_an_unknown_way_or_in_two_ways_is_refused() {
    let finish = json!({ "outcome": "succeeded" });
    assert!(matches!(parsed(&boundary(json!({ "finish": finish }))).outcome, Some(Outcome::Finish(_))));
    for outcome in [
        json!({ "park": { "parkId": ID, "until": 3 } }),
        json!({ "park": { "on": ["pay"] } }),
        json!({ "park": { "parkId": ID, "mode": "some" } }),
        json!({ "park": { "parkId": ID }, "finish": finish }),
        json!({ "wait": { "parkId": ID } }),
    ] {
        let text = boundary(outcome).to_string();
        assert!(serde_json::from_str::<CommitRequest>(&text).is_err(), "{text}");
    }
}
