//! Deltas: a full state may be stored as a delta to the state before it. That saves bytes and changes nothing else.

use std::sync::Arc;

use dalsegno_format::{fold, header};
use dalsegno_model::{Class, Commit, Committed, DeltaBase, Error, PATCH_CHAIN};
use dalsegno_proof::verify::{self, Checkpoint};
use dalsegno_protocol::Boundary;

use crate::context::*;
use crate::engines::{count, on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    patched_states_are_read_back_at_every_turn,
    a_patch_has_the_same_header_as_a_plain_state,
    a_stale_base_only_costs_bytes,
    a_patch_is_judged_like_any_other_commit,
    a_range_of_patched_boundaries_can_be_read,
}

on_every_persistent_engine! {
    a_patch_is_stored_only_if_it_is_smaller,
    a_patch_without_its_base_is_corrupt,
    a_patch_of_a_wrong_state_is_corrupt,
    a_snapshot_is_a_base_like_any_other,
    a_scan_reports_a_damaged_patch_once,
}

/// A long text that differs a little from turn to turn.
fn text(turn: i32) -> String {
    let words: Vec<_> =
        (0..400).map(|n: i32| format!("{:x}", n.wrapping_mul(n).wrapping_mul(2_654_435))).collect();
    format!(r#"{{"turn": {turn}, "words": "{}", "more": {}}}"#, words.join(" "), turn * turn)
}

fn full(text: &str) -> String {
    format!(r#"{{"full":true,"set":{{"state":{{"json":{text}}}}}}}"#)
}

/// A client that always sends its full state, and its gateway's cached base.
struct Client {
    worker: Worker,
    base: Option<DeltaBase>,
}

impl Client {
    async fn new(cx: &TestContext) -> Self {
        Self { worker: cx.worker().await, base: None }
    }

    fn commit(&self, turn: i32, boundary: Boundary) -> Commit {
        let ops = Some(full(&text(turn)).into_bytes());
        Commit { ops, base: self.base.clone(), ..self.worker.commit(turn, boundary) }
    }

    async fn turn(&mut self, cx: &TestContext, turn: i32) {
        let commit = self.commit(turn, Boundary::Result);
        let head = ok(cx.commit(&commit).await.unwrap()).head.unwrap();
        self.base = Some(base(&head.content_hash, &full(&text(turn))));
    }

    async fn state(&self, cx: &TestContext, turn: Option<i32>) -> String {
        let state = cx.state(self.worker.run, turn).await.unwrap().unwrap();
        serde_json::to_string(&state).unwrap()
    }
}

/// The delta base of a commit that follows this boundary.
pub fn base(content_hash: &str, ops: &str) -> DeltaBase {
    let state = fold::text(&fold::fold([ops]).unwrap()).unwrap();
    DeltaBase { content_hash: header::parse(content_hash).unwrap(), state: Arc::new(state) }
}

fn expected(turn: i32) -> String {
    format!(r#"{{"state":{{"value":{{"json":{}}}}}}}"#, text(turn))
}

async fn patches(cx: &TestContext) -> i64 {
    let is_sqlite = cx.is_sqlite();
    let codec = if is_sqlite { "substr(hex(ops), 1, 2)" } else { "encode(substr(ops, 1, 1), 'hex')" };
    let patch = if cx.sealed { "12" } else { "02" };
    count(cx, &format!("SELECT count(*) FROM boundaries WHERE {codec} = '{patch}'")).await
}

async fn patched_states_are_read_back_at_every_turn(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    for turn in 1..=25 {
        client.turn(cx, turn).await;
        if turn % 10 == 4 {
            // A boundary that leaves the state, and another worker: the gateway knows that the state has not changed.
            let bare = Commit { ops: None, full: false, ..client.worker.plan(turn + 1) };
            let head = ok(cx.commit(&bare).await.unwrap()).head.unwrap();
            client.base = Some(base(&head.content_hash, &full(&text(turn))));
            client.worker = cx.next_worker(&client.worker).await;
        }
    }
    for turn in 1..=25 {
        assert_eq!(client.state(cx, Some(turn)).await, expected(turn), "turn {turn}");
    }
    assert_eq!(client.state(cx, None).await, expected(25));
    cx.assert_linked(&client.worker).await;
    let made = cx.snapshot(client.worker.run).await.unwrap();
    assert!(made.made, "{made:?}: a patch counts like a delta");
    assert_eq!(client.state(cx, None).await, expected(25));
}

async fn a_patch_has_the_same_header_as_a_plain_state(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    client.turn(cx, 1).await;
    client.turn(cx, 2).await;
    let row = cx.boundaries(client.worker.run, 2, 2).await.unwrap().remove(0);
    assert_eq!((row.ops, row.full), (Some(full(&text(2))), true));
    cx.assert_linked(&client.worker).await;
}

async fn a_stale_base_only_costs_bytes(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    client.turn(cx, 1).await;
    let stale = client.base.clone();
    client.turn(cx, 2).await;
    client.base = stale;
    client.turn(cx, 3).await;
    let unrelated = DeltaBase { content_hash: [7; 32], state: Arc::new(text(1).into_bytes()) };
    client.base = Some(unrelated.clone());
    client.turn(cx, 4).await;
    for turn in 1..=4 {
        assert_eq!(client.state(cx, Some(turn)).await, expected(turn), "turn {turn}");
    }
    let mut first = Client { base: Some(unrelated), ..Client::new(cx).await };
    first.turn(cx, 1).await;
    assert_eq!(first.state(cx, None).await, expected(1), "a first boundary has no base");
    assert_eq!(cx.snapshot(first.worker.run).await.unwrap().lag, 0, "it is kept plain");
}

async fn a_patch_is_judged_like_any_other_commit(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    client.turn(cx, 1).await;
    let commit = client.commit(2, Boundary::Result);
    let receipt = ok(cx.commit(&commit).await.unwrap());
    assert_eq!(cx.commit(&commit).await.unwrap(), duplicate(&receipt), "its base is no longer the head");
    let other = client.commit(2, Boundary::Result);
    assert!(matches!(cx.commit(&other).await.unwrap(), Committed::Conflict { head: Some((2, _)) }));
    let late = client.commit(9, Boundary::Result);
    assert!(matches!(cx.commit(&late).await.unwrap(), Committed::Conflict { head: Some((2, _)) }));
    cx.end_and_reserve(&client.worker, Class::Crash).await;
    assert_eq!(cx.commit(&commit).await.unwrap(), Committed::Fenced { committed: true });
    assert_eq!(cx.commit(&other).await.unwrap(), Committed::Fenced { committed: false });
}

async fn a_range_of_patched_boundaries_can_be_read(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    for turn in 1..=15 {
        client.turn(cx, turn).await;
        if turn == 12 {
            assert!(cx.snapshot(client.worker.run).await.unwrap().made);
        }
    }
    for (from, to) in [(1, 15), (5, 7), (12, 12), (13, 13), (14, 99), (15, 15)] {
        let rows = cx.boundaries(client.worker.run, from, to).await.unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.turn, row.ops.clone().unwrap())).collect();
        let wanted: Vec<_> = (from..=to.min(15)).map(|turn| (turn, full(&text(turn)))).collect();
        assert_eq!(found, wanted, "{from}..={to}");
    }
}

async fn a_patch_is_stored_only_if_it_is_smaller(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    for turn in 1..=PATCH_CHAIN {
        client.turn(cx, turn).await;
    }
    assert_eq!(patches(cx).await, i64::from(PATCH_CHAIN) - 1);
    let before = patches(cx).await;
    let blank = Commit {
        ops: Some(full("1").into_bytes()),
        base: client.base.clone(),
        ..client.worker.result(PATCH_CHAIN + 1)
    };
    ok(cx.commit(&blank).await.unwrap());
    assert_eq!(patches(cx).await, before, "a plain value is as small");
    let sum = "SELECT CAST(sum(length(ops)) AS bigint) FROM boundaries WHERE turn";
    let (first, rest) =
        (count(cx, &format!("{sum} = 1")).await, count(cx, &format!("{sum} BETWEEN 2 AND 11")).await);
    assert!(rest < first, "ten patches of {rest} bytes, one plain state of {first}");
}

async fn a_patch_without_its_base_is_corrupt(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    for turn in 1..=4 {
        client.turn(cx, turn).await;
    }
    tamper(cx, "UPDATE boundaries SET ops = NULL WHERE turn = 1").await;
    for turn in 2..=4 {
        let refused = cx.state(client.worker.run, Some(turn)).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
    tamper(cx, "DELETE FROM boundaries WHERE turn = 1").await;
    assert!(matches!(cx.state(client.worker.run, None).await, Err(Error::Corrupt { .. })));
    assert!(matches!(cx.boundaries(client.worker.run, 3, 4).await, Err(Error::Corrupt { .. })));
}

async fn a_patch_of_a_wrong_state_is_corrupt(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    client.turn(cx, 1).await;
    // A gateway with a wrong state after the head is a bug, and the store must notice it.
    let wrong = DeltaBase { state: Arc::new(expected(9).into_bytes()), ..client.base.clone().unwrap() };
    client.base = Some(wrong);
    client.turn(cx, 2).await;
    assert_eq!(patches(cx).await, 1);
    let refused = cx.state(client.worker.run, None).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(client.state(cx, Some(1)).await, expected(1));
}

async fn a_snapshot_is_a_base_like_any_other(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    for turn in 1..=11 {
        client.turn(cx, turn).await;
    }
    assert!(cx.snapshot(client.worker.run).await.unwrap().made);
    for turn in 12..=14 {
        client.turn(cx, turn).await;
    }
    tamper(cx, "UPDATE boundaries SET ops = NULL WHERE turn <= 11").await;
    assert_eq!(client.state(cx, None).await, expected(14));
}

async fn a_scan_reports_a_damaged_patch_once(cx: &TestContext) {
    let mut client = Client::new(cx).await;
    for turn in 1..=12 {
        client.turn(cx, turn).await;
    }
    let run = cx.run_of(&client.worker).await;
    let found = verify::scan(&*cx.store, &run).await.unwrap();
    assert_eq!(
        (found.damage.as_slice(), found.last_good.map(|boundary_id| boundary_id.turn)),
        ([].as_slice(), Some(12))
    );

    let patch_of_6 = "SELECT ops FROM boundaries AS other WHERE other.turn = 6";
    tamper(cx, &format!("UPDATE boundaries SET ops = ({patch_of_6}) WHERE turn = 7")).await;
    let found = verify::scan(&*cx.store, &run).await.unwrap();
    let damaged: Vec<_> = found.damage.iter().map(|damage| damage.boundary.unwrap().turn).collect();
    assert_eq!(
        (damaged, found.last_good.map(|boundary_id| boundary_id.turn)),
        (vec![7], Some(6)),
        "reported once"
    );
    match verify::checkpoint(&*cx.store, &run).await.unwrap() {
        Checkpoint::Corrupt(corruption) => assert_eq!(corruption.last_good.unwrap().boundary.turn, 6),
        Checkpoint::Valid => panic!("the head's state cannot be rebuilt"),
    }
}
