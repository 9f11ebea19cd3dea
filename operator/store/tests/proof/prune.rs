//! The start of an audit is pruned behind an anchor, by who owns the tables, and never unnoticed.

use dalsegno_protocol::{Boundary, Policy};
use dalsegno_store::proof::bundle::verify;
use dalsegno_store::proof::{Anchor, Anchors, Problem, Signer, Standing, Unanchored, check_store};
use dalsegno_store::reading::RunHead;
use dalsegno_store::{AuditRow, Commit, Error, Place, Prune, Retention, Rewind, RunId, audit, header};
use jiff::Timestamp;

use crate::append_only::with_a_role;
use crate::bundles;
use crate::calls::{busy, restore};
use crate::stores::{id, worked_with};
use crate::world::{ok, person_settles, planned};
use crate::{Face, on_both};

on_both! {
    a_start_that_an_anchor_names_is_pruned_and_the_rest_still_verifies,
    a_start_that_no_anchor_names_is_found,
    a_start_that_only_the_stores_own_anchors_name_is_found_with_the_copy,
    a_start_that_is_missing_without_a_word_is_found,
    what_the_rows_that_went_said_of_the_run_is_said_again,
    what_tells_of_dropped_payloads_is_needed,
    what_pruned_rows_told_of_calls_nobody_knows_and_what_is_left_counts,
}

/// Anchors the store as it stands; the copy has one more line each time.
async fn anchor(face: &Face, copy: &mut Vec<String>) {
    let store = &face.world.store;
    let moved = store.unanchored().await.unwrap();
    let signer = bundles::signer().await;
    let at = Timestamp::from_second(1_000 * (copy.len() as i64 + 1)).unwrap();
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), at, &signer);
    assert!(store.put_anchor(&anchor.row().unwrap()).await.unwrap());
    copy.push(anchor.line().unwrap());
}

fn anchors(copy: &[String]) -> Anchors {
    let mut anchors = Anchors::default();
    copy.iter().for_each(|line| assert_eq!(anchors.take("copy", line), None));
    anchors
}

async fn problems(face: &Face, copy: &[String]) -> Vec<String> {
    let told = problems_at(face, copy).await;
    told.iter().map(|told| told.split_once(": ").unwrap().1.to_owned()).collect()
}

/// Problems with their places.
async fn problems_at(face: &Face, copy: &[String]) -> Vec<String> {
    let mut told = Vec::new();
    let mut tell = |problem: Problem| told.push(format!("{}: {}", problem.place, problem.what));
    let mut reading = face.world.reading().await.unwrap();
    check_store(&mut *reading, anchors(copy), &mut tell).await.unwrap();
    told
}

fn to(run: RunId, row: &AuditRow) -> Prune {
    Prune { run, seq: row.seq, hash: row.hash, actor: "ada".into(), reason: "it is archived".into() }
}

async fn a_start_that_an_anchor_names_is_pruned_and_the_rest_still_verifies(face: &Face) {
    let (worker, mut copy) = (worked_with(face).await, Vec::new());
    anchor(face, &mut copy).await;
    let before = face.world.audit(worker.run).await.unwrap();
    let early = Timestamp::from_second(1_500).unwrap();
    face.world.request_cancel(worker.run).await.unwrap();
    anchor(face, &mut copy).await;

    let named = anchors(&copy).last_named(worker.run, early, i64::MAX);
    let last = before.last().unwrap();
    assert_eq!(named, Some((last.seq, last.hash)), "later anchors are not asked");
    assert_eq!(anchors(&copy).last_named(worker.run, Timestamp::from_second(1_000).unwrap(), i64::MAX), None);
    assert_eq!(face.world.prune_audit(&to(worker.run, last)).await.unwrap(), before.len() as u64);
    assert_eq!(face.world.prune_audit(&to(worker.run, last)).await.unwrap(), 0, "once");

    let rows = face.world.audit(worker.run).await.unwrap();
    assert_eq!(rows[0].seq, last.seq + 1);
    let told = rows.last().unwrap();
    assert_eq!((told.kind.as_str(), told.actor.as_str()), ("pruned", "ada"));
    assert_eq!(audit::pruned_to(told), Some((last.seq, last.hash)));
    for copy in [&copy[..], &copy[..1], &[]] {
        assert_eq!(problems(face, copy).await, [""; 0], "the store's own anchors name it as well");
    }
    let reading = face.world.reading().await.unwrap();
    let bundle = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    assert_eq!(verify(&bundle[..], None).unwrap().problems, []);

    anchor(face, &mut copy).await;
    let second = face.world.audit(worker.run).await.unwrap().pop().unwrap();
    assert_eq!(face.world.prune_audit(&to(worker.run, &second)).await.unwrap(), rows.len() as u64);
    assert_eq!(problems(face, &copy).await, [""; 0], "and again");
}

async fn a_start_that_no_anchor_names_is_found(face: &Face) {
    let (worker, mut copy) = (worked_with(face).await, Vec::new());
    anchor(face, &mut copy).await;
    let rows = face.world.audit(worker.run).await.unwrap();
    face.world.prune_audit(&to(worker.run, &rows[2])).await.unwrap();
    let found = "the rows up to it were pruned, and no anchor names it";
    assert_eq!(problems(face, &copy).await, [found]);
    assert_eq!(problems(face, &[]).await, [found]);
}

/// Rows that somebody made up, as if those before them had been pruned, and an anchor to it that they have signed themselves.
async fn a_start_that_only_the_stores_own_anchors_name_is_found_with_the_copy(face: &Face) {
    let (worker, mut copy) = (worked_with(face).await, Vec::new());
    anchor(face, &mut copy).await;
    let run = worker.run;
    let head = runs(face).await.into_iter().find(|it| it.id == run).unwrap();
    let last = [0xab; 32];
    let pruned = serde_json::json!({ "to": 40, "hash": header::render(&last) }).to_string();
    let (mut sql, mut parent_hash) = (String::new(), last);
    for (seq, kind, detail) in [(41, "attached", "{}"), (42, "pruned", pruned.as_str())] {
        let (at, actor) = (1_000, "operator");
        let hash = audit::Link { parent_hash: &parent_hash, run, seq, at, kind, actor, detail }.hash();
        let (parent, own, of) = (bytes(face, &parent_hash), bytes(face, &hash), id(face, run));
        sql += &format!(
            "INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash) \
             VALUES ({of}, {seq}, {at}, '{kind}', '{actor}', '{detail}', {parent}, {own}); \
             UPDATE runs SET audit_seq = {seq}, audit_hash = {own} WHERE id = {of};"
        );
        parent_hash = hash;
    }
    face.unlock().await;
    face.execute(&format!("DELETE FROM audit WHERE run = {}; {sql}", id(face, run))).await.unwrap();
    let made_up = Standing {
        run,
        audit_seq: 40,
        audit_hash: last,
        head: head.head.map(|head| (head.place, head.content_hash)),
    };
    let store = &face.world.store;
    let moved = Unanchored { standings: vec![made_up], ..store.unanchored().await.unwrap() };
    let forger = Signer::load(&dalsegno_store::sqlite::Sqlite::memory().await.unwrap(), None).await.unwrap();
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), Timestamp::UNIX_EPOCH, &forger);
    assert!(store.put_anchor(&anchor.row().unwrap()).await.unwrap());

    let named =
        format!("audit row {}: an anchor names it, and it is not there, or is another", head.audit_seq);
    let mut found = problems_at(face, &copy).await;
    found.sort();
    let told = "audit row 40: the rows up to it were pruned, and only the store's own anchors name it";
    assert_eq!(found, [named, told.to_owned()]);
}

async fn runs(face: &Face) -> Vec<RunHead> {
    face.world.reading().await.unwrap().runs(None).await.unwrap()
}

/// How bytes are written in the database's own SQL.
fn bytes(face: &Face, bytes: &[u8; 32]) -> String {
    let hex = header::render(bytes).replace("sha256:", "");
    if face.is_postgres() { format!("'\\x{hex}'") } else { format!("x'{hex}'") }
}

async fn a_start_that_is_missing_without_a_word_is_found(face: &Face) {
    let (worker, mut copy) = (worked_with(face).await, Vec::new());
    anchor(face, &mut copy).await;
    let last = face.world.audit(worker.run).await.unwrap().pop().unwrap();
    face.world.request_cancel(worker.run).await.unwrap();
    face.unlock().await;
    let run = id(face, worker.run);
    face.execute(&format!("DELETE FROM audit WHERE run = {run} AND seq <= {}", last.seq)).await.unwrap();
    let found = problems(face, &copy).await;
    assert!(found.contains(&"row 1 was expected: rows are missing, or in another order".into()), "{found:?}");
}

async fn what_the_rows_that_went_said_of_the_run_is_said_again(face: &Face) {
    let (worker, mut copy) = (worked_with(face).await, Vec::new());
    for turn in [3, 2] {
        let (epoch, reason, actor) =
            (face.world.of(&worker).await.epoch, "it went astray".into(), "ada".into());
        let back = Rewind { epoch, to: Place { turn, boundary: Boundary::Result, epoch: 1 }, reason, actor };
        face.world.rewind(worker.run, &back).await.unwrap();
        anchor(face, &mut copy).await;
        let last = face.world.audit(worker.run).await.unwrap().pop().unwrap();
        assert!(face.world.prune_audit(&to(worker.run, &last)).await.unwrap() > 0);
        let rows = face.world.audit(worker.run).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.kind.as_str()).collect::<Vec<_>>(), ["pruned"]);
        assert_eq!(problems(face, &copy).await, [""; 0]);
    }
    let run = id(face, worker.run);
    for turn in [3, 4] {
        let turn = format!("UPDATE boundaries SET undone = NOT undone WHERE run = {run} AND turn = {turn}");
        face.execute(&turn).await.unwrap();
        assert!(problems(face, &copy).await.iter().any(|told| told.contains("a rewind undid it")), "{turn}");
        face.execute(&turn).await.unwrap();
        assert_eq!(problems(face, &copy).await, [""; 0]);
    }
    let other = format!("UPDATE runs SET name = 'x', lifecycle = 'finished' WHERE id = {run}");
    face.execute(&other).await.unwrap();
    let told = ["name", "lifecycle"].map(|column| format!("its {column} is not what the audit says"));
    assert_eq!(problems(face, &copy).await, told);
}

async fn what_tells_of_dropped_payloads_is_needed(face: &Face) {
    let worker = worked_with(face).await;
    assert_eq!(audit::first_needed(&face.world.audit(worker.run).await.unwrap()), i64::MAX);
    face.world.finish(&worker.finish()).await.unwrap();
    face.world.set_retention(worker.run, &Retention { days: 0, keep_last: Some(1) }).await.unwrap();
    while face.world.drop_old(worker.run, 500).await.unwrap().run.is_some() {}
    let dropped = face.world.audit(worker.run).await.unwrap().pop().unwrap();
    while face.world.drop_expired(500).await.unwrap().run.is_some() {}
    let rows = face.world.audit(worker.run).await.unwrap();
    assert_eq!((audit::first_needed(&rows), dropped.kind.as_str()), (dropped.seq, "dropped"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_of_operator_and_gateway_prunes_nothing() {
    let face = with_a_role("an app that prunes").await;
    let worker = worked_with(&face).await;
    let rows = face.world.audit(worker.run).await.unwrap();
    let refused = face.world.prune_audit(&to(worker.run, &rows[2])).await;
    assert!(matches!(&refused, Err(Error::Unfit(why)) if why.contains("owns its tables")), "{refused:?}");
    let by_hand = face.execute("SET dalsegno.prunes = 'yes'; DELETE FROM audit").await.unwrap_err();
    assert_eq!(by_hand.as_database_error().unwrap().code().unwrap(), "42501");
    assert_eq!(face.world.audit(worker.run).await.unwrap(), rows);
    assert_eq!(face.check().await.1, []);
}

async fn what_pruned_rows_told_of_calls_nobody_knows_and_what_is_left_counts(face: &Face) {
    let (worker, mut copy) = (busy(face).await, Vec::new());
    anchor(face, &mut copy).await;
    let rows = face.world.audit(worker.run).await.unwrap();
    // The call `again` was claimed before it, and again after.
    let last = rows.iter().find(|row| row.kind == audit::kind::ENDED).unwrap();
    face.world.prune_audit(&to(worker.run, last)).await.unwrap();
    let run = id(face, worker.run);
    let after = async |sql: &str| {
        face.execute(sql).await.unwrap();
        let found = problems_at(face, &copy).await.into_iter();
        // That no anchor names the row up to which they were pruned is told too.
        found.filter(|problem| problem.starts_with("call")).collect::<Vec<_>>()
    };
    let set = |set: &str, call: &str| format!("UPDATE calls SET {set} WHERE run = {run} AND id = '{call}'");
    assert_eq!(after("CREATE TABLE kept AS SELECT * FROM calls").await, [""; 0]);
    assert_eq!(after(&set("key = 'another'", "again")).await, [""; 0], "only a row that went told of it");
    let other = "call \"again\": its result is not what the audit says";
    assert_eq!(after(&set("result = NULL", "again")).await, [other]);
    // Which calls these rows told of is known all the same.
    restore(face).await;
    let names =
        "calls: of those that pruned rows told of some are not there, or some are that nobody told of";
    assert_eq!(after(&format!("DELETE FROM calls WHERE run = {run} AND id = 'paid'")).await, [names]);
    restore(face).await;
    assert_eq!(after(&set("id = 'made-up', result = NULL, arguments = NULL", "paid")).await, [names]);
    restore(face).await;
    // What is not as the rows tell is not vouched for by another.
    let last = face.world.audit(worker.run).await.unwrap().pop().unwrap();
    let refused = async || face.world.prune_audit(&to(worker.run, &last)).await;
    for edit in [
        set("id = 'made-up', result = NULL, arguments = NULL", "paid"),
        format!("DELETE FROM calls WHERE run = {run}"),
    ] {
        face.execute(&edit).await.unwrap();
        assert!(matches!(refused().await, Err(Error::Corrupt { .. })), "{edit}");
        restore(face).await;
    }
    // A second row says it again, of more calls. Their order is that of their bytes, whatever the database's is.
    face.execute("DROP TABLE kept").await.unwrap();
    for name in ["b", "B", "a-2", "a.1", "A:3", "late"] {
        face.world.start_call(&worker, name, Policy::ReadOnly).await;
    }
    face.world.settle(&person_settles(worker.run, "refused")).await.unwrap();
    ok(face.world.commit(&worker.result(2)).await.unwrap());
    let calls = vec![planned("z", Policy::Ask), planned("Y", Policy::Ask)];
    ok(face.world.commit(&Commit { calls, ..worker.plan(3) }).await.unwrap());
    let rows = face.world.audit(worker.run).await.unwrap();
    let [.., before, plan] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(plan.kind, audit::kind::PLANNED);
    face.world.prune_audit(&to(worker.run, before)).await.unwrap();
    assert_eq!(after("CREATE TABLE kept AS SELECT * FROM calls").await, [""; 0]);
    face.world.start_call(&worker, "z", Policy::Ask).await;
    ok(face.world.commit(&worker.result(3)).await.unwrap());
    let calls = vec![planned("Y", Policy::Ask)];
    ok(face.world.commit(&Commit { calls, ..worker.plan(4) }).await.unwrap());
    assert_eq!(after("DROP TABLE kept").await, [""; 0]);
    let last = face.world.audit(worker.run).await.unwrap().pop().unwrap();
    face.world.prune_audit(&to(worker.run, &last)).await.unwrap();
    assert_eq!(after("CREATE TABLE kept AS SELECT * FROM calls").await, [""; 0]);
    face.execute(&format!("DELETE FROM calls WHERE run = {run} AND id = 'a-2'")).await.unwrap();
    face.world.start_call(&worker, "newest", Policy::ReadOnly).await;
    let last = face.world.audit(worker.run).await.unwrap().pop().unwrap();
    assert!(matches!(face.world.prune_audit(&to(worker.run, &last)).await, Err(Error::Corrupt { .. })));
    restore(face).await;
    let told = format!("DELETE FROM calls WHERE run = {run} AND id = 'newest'");
    let newest = "call \"newest\": the audit tells of it, and it is not there";
    assert_eq!(after(&told).await, [newest], "the table was kept before it");
    assert!(matches!(face.world.prune_audit(&to(worker.run, &last)).await, Err(Error::Corrupt { .. })));
}
