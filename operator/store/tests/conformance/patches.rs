//! A full state may be kept as a patch of the state before: fewer bytes, the same boundary.

use std::sync::Arc;

use dalsegno_protocol::Boundary;
use dalsegno_store::verify::{self, Checkpoint};
use dalsegno_store::{Base, Class, Commit, Committed, Error, PATCH_CHAIN, fold, header};

use crate::faces::{count, on_every_face, on_every_lasting_face, tamper};
use crate::world::*;

on_every_face! {
    patched_states_come_back_at_every_turn,
    a_patch_has_the_same_header_as_a_plain_state,
    a_base_that_is_not_the_head_costs_only_bytes,
    a_patch_is_judged_like_any_other_commit,
    a_range_of_patched_boundaries_may_be_asked_for,
}

on_every_lasting_face! {
    a_patch_is_kept_only_where_it_is_smaller,
    a_patch_whose_base_is_gone_is_corrupt,
    a_patch_of_another_state_is_corrupt,
    a_snapshot_is_a_base_like_any_other,
    a_survey_judges_a_patch_after_the_state_before_it,
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

/// A plain client behind a gateway that remembers.
struct Client {
    worker: Worker,
    base: Option<Base>,
}

impl Client {
    async fn new(world: &World) -> Self {
        Self { worker: world.worker().await, base: None }
    }

    fn commit(&self, turn: i32, boundary: Boundary) -> Commit {
        let ops = Some(full(&text(turn)).into_bytes());
        Commit { ops, base: self.base.clone(), ..self.worker.commit(turn, boundary) }
    }

    async fn turn(&mut self, world: &World, turn: i32) {
        let commit = self.commit(turn, Boundary::Result);
        let head = ok(world.commit(&commit).await.unwrap()).head.unwrap();
        self.base = Some(base(&head.content_hash, &full(&text(turn))));
    }

    async fn state(&self, world: &World, turn: Option<i32>) -> String {
        let state = world.state(self.worker.run, turn).await.unwrap().unwrap();
        serde_json::to_string(&state).unwrap()
    }
}

/// What a commit after this boundary is patched on.
pub fn base(content_hash: &str, ops: &str) -> Base {
    let state = fold::text(&fold::fold([ops]).unwrap()).unwrap();
    Base { content_hash: header::parse(content_hash).unwrap(), state: Arc::new(state) }
}

fn expected(turn: i32) -> String {
    format!(r#"{{"state":{{"value":{{"json":{}}}}}}}"#, text(turn))
}

async fn patches(world: &World) -> i64 {
    let is_sqlite = world.url.as_deref().unwrap().starts_with("sqlite:");
    let codec = if is_sqlite { "substr(hex(ops), 1, 2)" } else { "encode(substr(ops, 1, 1), 'hex')" };
    let patch = if world.sealed { "12" } else { "02" };
    count(world, &format!("SELECT count(*) FROM boundaries WHERE {codec} = '{patch}'")).await
}

async fn patched_states_come_back_at_every_turn(world: &World) {
    let mut client = Client::new(world).await;
    for turn in 1..=25 {
        client.turn(world, turn).await;
        if turn % 10 == 4 {
            // A boundary that leaves the state, and a change of the worker: the gateway knows that the state stayed.
            let bare = Commit { ops: None, full: false, ..client.worker.plan(turn + 1) };
            let head = ok(world.commit(&bare).await.unwrap()).head.unwrap();
            client.base = Some(base(&head.content_hash, &full(&text(turn))));
            client.worker = world.next(&client.worker).await;
        }
    }
    for turn in 1..=25 {
        assert_eq!(client.state(world, Some(turn)).await, expected(turn), "turn {turn}");
    }
    assert_eq!(client.state(world, None).await, expected(25));
    world.assert_linked(&client.worker).await;
    let made = world.snapshot(client.worker.run).await.unwrap();
    assert!(made.made, "{made:?}: patches are counted like deltas");
    assert_eq!(client.state(world, None).await, expected(25));
}

async fn a_patch_has_the_same_header_as_a_plain_state(world: &World) {
    let mut client = Client::new(world).await;
    client.turn(world, 1).await;
    client.turn(world, 2).await;
    let row = world.boundaries(client.worker.run, 2, 2).await.unwrap().remove(0);
    assert_eq!((row.ops, row.full), (Some(full(&text(2))), true));
    world.assert_linked(&client.worker).await;
}

async fn a_base_that_is_not_the_head_costs_only_bytes(world: &World) {
    let mut client = Client::new(world).await;
    client.turn(world, 1).await;
    let stale = client.base.clone();
    client.turn(world, 2).await;
    client.base = stale;
    client.turn(world, 3).await;
    let nobodys = Base { content_hash: [7; 32], state: Arc::new(text(1).into_bytes()) };
    client.base = Some(nobodys.clone());
    client.turn(world, 4).await;
    for turn in 1..=4 {
        assert_eq!(client.state(world, Some(turn)).await, expected(turn), "turn {turn}");
    }
    let mut first = Client { base: Some(nobodys), ..Client::new(world).await };
    first.turn(world, 1).await;
    assert_eq!(first.state(world, None).await, expected(1), "a first boundary has nothing before it");
    assert_eq!(world.snapshot(first.worker.run).await.unwrap().lag, 0, "it is kept plain");
}

async fn a_patch_is_judged_like_any_other_commit(world: &World) {
    let mut client = Client::new(world).await;
    client.turn(world, 1).await;
    let commit = client.commit(2, Boundary::Result);
    let standing = ok(world.commit(&commit).await.unwrap());
    assert_eq!(world.commit(&commit).await.unwrap(), duplicate(&standing), "its base is not the head now");
    let other = client.commit(2, Boundary::Result);
    assert!(matches!(world.commit(&other).await.unwrap(), Committed::Conflict { head: Some((2, _)) }));
    let late = client.commit(9, Boundary::Result);
    assert!(matches!(world.commit(&late).await.unwrap(), Committed::Conflict { head: Some((2, _)) }));
    world.lose(&client.worker, Class::Crash).await;
    assert_eq!(world.commit(&commit).await.unwrap(), Committed::Fenced { committed: true });
    assert_eq!(world.commit(&other).await.unwrap(), Committed::Fenced { committed: false });
}

async fn a_range_of_patched_boundaries_may_be_asked_for(world: &World) {
    let mut client = Client::new(world).await;
    for turn in 1..=15 {
        client.turn(world, turn).await;
        if turn == 12 {
            assert!(world.snapshot(client.worker.run).await.unwrap().made);
        }
    }
    for (from, to) in [(1, 15), (5, 7), (12, 12), (13, 13), (14, 99), (15, 15)] {
        let rows = world.boundaries(client.worker.run, from, to).await.unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.turn, row.ops.clone().unwrap())).collect();
        let wanted: Vec<_> = (from..=to.min(15)).map(|turn| (turn, full(&text(turn)))).collect();
        assert_eq!(found, wanted, "{from}..={to}");
    }
}

async fn a_patch_is_kept_only_where_it_is_smaller(world: &World) {
    let mut client = Client::new(world).await;
    for turn in 1..=PATCH_CHAIN {
        client.turn(world, turn).await;
    }
    assert_eq!(patches(world).await, i64::from(PATCH_CHAIN) - 1);
    let before = patches(world).await;
    let blank = Commit {
        ops: Some(full("1").into_bytes()),
        base: client.base.clone(),
        ..client.worker.result(PATCH_CHAIN + 1)
    };
    ok(world.commit(&blank).await.unwrap());
    assert_eq!(patches(world).await, before, "a plain one is as small");
    let sum = "SELECT CAST(sum(length(ops)) AS bigint) FROM boundaries WHERE turn";
    let (first, rest) =
        (count(world, &format!("{sum} = 1")).await, count(world, &format!("{sum} BETWEEN 2 AND 11")).await);
    assert!(rest < first, "ten patches of {rest} bytes, one plain state of {first}");
}

async fn a_patch_whose_base_is_gone_is_corrupt(world: &World) {
    let mut client = Client::new(world).await;
    for turn in 1..=4 {
        client.turn(world, turn).await;
    }
    tamper(world, "UPDATE boundaries SET ops = NULL WHERE turn = 1").await;
    for turn in 2..=4 {
        let refused = world.state(client.worker.run, Some(turn)).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
    tamper(world, "DELETE FROM boundaries WHERE turn = 1").await;
    assert!(matches!(world.state(client.worker.run, None).await, Err(Error::Corrupt { .. })));
    assert!(matches!(world.boundaries(client.worker.run, 3, 4).await, Err(Error::Corrupt { .. })));
}

async fn a_patch_of_another_state_is_corrupt(world: &World) {
    let mut client = Client::new(world).await;
    client.turn(world, 1).await;
    // A gateway that is wrong about the state after the head: it should not be, and it must not go unnoticed.
    let wrong = Base { state: Arc::new(expected(9).into_bytes()), ..client.base.clone().unwrap() };
    client.base = Some(wrong);
    client.turn(world, 2).await;
    assert_eq!(patches(world).await, 1);
    let refused = world.state(client.worker.run, None).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(client.state(world, Some(1)).await, expected(1));
}

async fn a_snapshot_is_a_base_like_any_other(world: &World) {
    let mut client = Client::new(world).await;
    for turn in 1..=11 {
        client.turn(world, turn).await;
    }
    assert!(world.snapshot(client.worker.run).await.unwrap().made);
    for turn in 12..=14 {
        client.turn(world, turn).await;
    }
    tamper(world, "UPDATE boundaries SET ops = NULL WHERE turn <= 11").await;
    assert_eq!(client.state(world, None).await, expected(14));
}

async fn a_survey_judges_a_patch_after_the_state_before_it(world: &World) {
    let mut client = Client::new(world).await;
    for turn in 1..=12 {
        client.turn(world, turn).await;
    }
    let run = world.of(&client.worker).await;
    let found = verify::survey(&*world.store, &run).await.unwrap();
    assert_eq!((found.damage.as_slice(), found.last_good.map(|place| place.turn)), ([].as_slice(), Some(12)));

    let patch_of_6 = "SELECT ops FROM boundaries AS other WHERE other.turn = 6";
    tamper(world, &format!("UPDATE boundaries SET ops = ({patch_of_6}) WHERE turn = 7")).await;
    let found = verify::survey(&*world.store, &run).await.unwrap();
    let damaged: Vec<_> = found.damage.iter().map(|damage| damage.place.unwrap().turn).collect();
    assert_eq!((damaged, found.last_good.map(|place| place.turn)), (vec![7], Some(6)), "told of once");
    match verify::checkpoint(&*world.store, &run).await.unwrap() {
        Checkpoint::Corrupt(corruption) => assert_eq!(corruption.last_good.unwrap().place.turn, 6),
        Checkpoint::Sound => panic!("the head's state cannot be rebuilt"),
    }
}
