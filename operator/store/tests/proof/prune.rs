//! Pruning: the owner of the tables removes the start of an audit behind an anchor. A check always finds it.

use dalsegno_format::audit;
use dalsegno_format::header;
use dalsegno_model::read_transaction::RunHead;
use dalsegno_model::{AuditRow, Commit, Error, Prune, Retention, RunId};
use dalsegno_proof::bundle::verify;
use dalsegno_proof::{
    Anchor, AnchoredHead, Anchors, HeadsToAnchor, NamedRows, Problem, Signer, check_store,
    check_store_and_anchors,
};
use dalsegno_protocol::Policy;
use jiff::Timestamp;

use crate::append_only::with_a_role;
use crate::bundles;
use crate::calls::{busy, restore};
use crate::context::{ok, person_settles, planned, result_place, rewind_to};
use crate::stores::{id, used};
use crate::{Engine, on_both_databases};

on_both_databases! {
    an_anchored_start_is_pruned_and_the_rest_still_verifies,
    anchors_before_a_prune_are_pruned_and_the_rest_still_verifies,
    pruning_without_an_anchor_is_found,
    pruning_behind_a_forged_anchor_is_found_with_the_copy,
    a_start_deleted_without_an_audit_row_is_found,
    the_pruned_row_repeats_the_pruned_facts_about_the_run,
    audit_rows_about_dropped_payloads_are_never_pruned,
    calls_are_checked_against_the_rows_left_after_pruning,
}

/// Anchors the store in its current state and appends the line to the copy.
pub async fn anchor(engine: &Engine, copy: &mut Vec<String>) {
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
    let signer = bundles::signer().await;
    let at = Timestamp::from_second(1_000 * (copy.len() as i64 + 1)).unwrap();
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), at, &signer).unwrap();
    assert!(store.put_anchor(anchor.stored()).await.unwrap());
    copy.push(anchor.line().text().unwrap());
}

pub fn anchors(copy: &[String]) -> Anchors {
    let mut anchors = Anchors::default();
    copy.iter().for_each(|line| assert_eq!(anchors.take("copy", line), None));
    anchors
}

pub async fn problems(engine: &Engine, copy: &[String]) -> Vec<String> {
    let all = problems_at(engine, copy).await;
    all.iter().map(|problem| problem.split_once(": ").unwrap().1.to_owned()).collect()
}

/// The problems with their places.
async fn problems_at(engine: &Engine, copy: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut report = |problem: Problem| problems.push(format!("{}: {}", problem.location, problem.what));
    let mut reading = engine.cx.begin_read().await.unwrap();
    check_store(&mut *reading, anchors(copy), &mut report).await.unwrap();
    problems
}

fn to(run: RunId, row: &AuditRow) -> Prune {
    Prune { run, seq: row.seq, hash: row.hash, actor: "ada".into(), reason: "it is archived".into() }
}

async fn an_anchored_start_is_pruned_and_the_rest_still_verifies(engine: &Engine) {
    let (worker, mut copy) = (used(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    let before = engine.cx.audit(worker.run).await.unwrap();
    engine.cx.request_cancel(worker.run).await.unwrap();
    anchor(engine, &mut copy).await;

    let last = before.last().unwrap();
    let last_named = async |copy: &[String], before: i64, below: i64| {
        let mut reading = engine.cx.begin_read().await.unwrap();
        let checked = check_store_and_anchors(&mut *reading, &anchors(copy), &mut |_| ()).await.unwrap();
        let before = Timestamp::from_second(before).unwrap();
        let rows = NamedRows { run: worker.run, before, below };
        checked.1.last_named(&mut *reading, rows).await.unwrap()
    };
    let named = Some((last.seq, last.hash));
    assert_eq!(last_named(&copy, 1_500, i64::MAX).await, named, "later anchors do not count");
    assert_eq!(last_named(&copy[1..], 1_500, i64::MAX).await, named, "a later line proves it");
    assert_eq!(last_named(&copy[..1], 3_000, i64::MAX).await, named, "no line proves the second anchor");
    assert_eq!(last_named(&copy, 1_000, i64::MAX).await, None);
    assert_eq!(last_named(&copy, 1_500, last.seq).await, None);
    assert_eq!(engine.cx.prune_audit(&to(worker.run, last)).await.unwrap(), before.len() as u64);
    assert_eq!(engine.cx.prune_audit(&to(worker.run, last)).await.unwrap(), 0, "once");

    let rows = engine.cx.audit(worker.run).await.unwrap();
    assert_eq!(rows[0].seq, last.seq + 1);
    let pruned = rows.last().unwrap();
    assert_eq!((pruned.kind.as_str(), pruned.actor.as_str()), ("pruned", "ada"));
    assert_eq!(audit::pruned_to(pruned), Some((last.seq, last.hash)));
    for copy in [&copy[..], &copy[..1], &[]] {
        assert_eq!(problems(engine, copy).await, [""; 0], "the store's own anchors name it too");
    }
    let reading = engine.cx.begin_read().await.unwrap();
    let bundle = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    assert_eq!(verify(&bundle[..], None).unwrap().problems, []);

    anchor(engine, &mut copy).await;
    let second = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    assert_eq!(engine.cx.prune_audit(&to(worker.run, &second)).await.unwrap(), rows.len() as u64);
    assert_eq!(problems(engine, &copy).await, [""; 0], "a second prune");
}

/// After a prune of the audit its anchors are pruned too: then a later anchor must name the row that records the prune.
async fn anchors_before_a_prune_are_pruned_and_the_rest_still_verifies(engine: &Engine) {
    let (worker, mut copy) = (used(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    let last = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    engine.cx.prune_audit(&to(worker.run, &last)).await.unwrap();
    anchor(engine, &mut copy).await;
    engine.cx.store.request_anchors_from(2).await.unwrap();
    anchor(engine, &mut copy).await;
    assert_eq!(engine.cx.store.prune_anchors(anchors(&copy).announced()).await.unwrap(), 1);
    for copy in [&copy[..], &copy[2..], &[]] {
        assert_eq!(problems(engine, copy).await, [""; 0]);
    }
    let found = problems(engine, &copy[..2]).await;
    let cut = "anchor 1 was expected: some are missing".to_owned();
    assert!(found.contains(&cut), "the copy does not know that anchors were to go: {found:?}");
    // A prune by hand, which no anchor knows yet.
    let row = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    engine.cx.request_cancel(worker.run).await.unwrap();
    let next = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    assert_ne!(row.seq, next.seq);
    engine.cx.prune_audit(&to(worker.run, &next)).await.unwrap();
    let found = problems(engine, &copy).await;
    assert!(found.contains(&"the rows up to it were pruned, and no anchor names it".to_owned()), "{found:?}");
}

async fn pruning_without_an_anchor_is_found(engine: &Engine) {
    let (worker, mut copy) = (used(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    let rows = engine.cx.audit(worker.run).await.unwrap();
    engine.cx.prune_audit(&to(worker.run, &rows[2])).await.unwrap();
    let found = "the rows up to it were pruned, and no anchor names it";
    assert_eq!(problems(engine, &copy).await, [found]);
    assert_eq!(problems(engine, &[]).await, [found]);
}

/// Forges rows as if those before them had been pruned, and an anchor for the start that is signed with another key.
async fn pruning_behind_a_forged_anchor_is_found_with_the_copy(engine: &Engine) {
    let (worker, mut copy) = (used(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    let run = worker.run;
    let head = runs(engine).await.into_iter().find(|it| it.id == run).unwrap();
    let last = [0xab; 32];
    let pruned = serde_json::json!({ "to": 40, "hash": header::render(&last) }).to_string();
    let (mut sql, mut parent_hash) = (String::new(), last);
    for (seq, kind, detail) in [(41, "attached", "{}"), (42, "pruned", pruned.as_str())] {
        let (at, actor) = (1_000, "operator");
        let hash = audit::AuditHeader { parent_hash: &parent_hash, run, seq, at, kind, actor, detail }.hash();
        let (parent, own, of) = (bytes(engine, &parent_hash), bytes(engine, &hash), id(engine, run));
        sql += &format!(
            "INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash) \
             VALUES ({of}, {seq}, {at}, '{kind}', '{actor}', '{detail}', {parent}, {own}); \
             UPDATE runs SET audit_seq = {seq}, audit_hash = {own} WHERE id = {of};"
        );
        parent_hash = hash;
    }
    engine.unlock().await;
    engine.execute(&format!("DELETE FROM audit WHERE run = {}; {sql}", id(engine, run))).await.unwrap();
    let made_up = AnchoredHead {
        run,
        audit_seq: 40,
        audit_hash: last,
        head: head.head.map(|head| (head.boundary, head.content_hash)),
    };
    let store = &engine.cx.store;
    let moved = store.heads_to_anchor(RunId::nil()).await.unwrap();
    let moved = HeadsToAnchor { heads: vec![made_up], ..moved };
    let forger = Signer::load(&dalsegno_store::sqlite::Sqlite::memory().await.unwrap(), None).await.unwrap();
    let anchor = Anchor::next(&moved, store.id().await.unwrap(), Timestamp::UNIX_EPOCH, &forger).unwrap();
    assert!(store.put_anchor(anchor.stored()).await.unwrap());

    let named = format!("audit row {}: an anchor names it, and it is missing or different", head.audit_seq);
    let mut found = problems_at(engine, &copy).await;
    found.sort();
    let pruned = "audit row 40: the rows up to it were pruned, and only the store's own anchors name it";
    assert_eq!(found, [named, pruned.to_owned()]);
}

async fn runs(engine: &Engine) -> Vec<RunHead> {
    engine.cx.begin_read().await.unwrap().runs(None).await.unwrap()
}

/// The bytes as a literal in the database's SQL.
fn bytes(engine: &Engine, bytes: &[u8; 32]) -> String {
    let hex = header::render(bytes).replace("sha256:", "");
    if engine.is_postgres() { format!("'\\x{hex}'") } else { format!("x'{hex}'") }
}

async fn a_start_deleted_without_an_audit_row_is_found(engine: &Engine) {
    let (worker, mut copy) = (used(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    let last = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    engine.cx.request_cancel(worker.run).await.unwrap();
    engine.unlock().await;
    let run = id(engine, worker.run);
    engine.execute(&format!("DELETE FROM audit WHERE run = {run} AND seq <= {}", last.seq)).await.unwrap();
    let found = problems(engine, &copy).await;
    assert!(found.contains(&"row 1 was expected: rows are missing, or in another order".into()), "{found:?}");
}

async fn the_pruned_row_repeats_the_pruned_facts_about_the_run(engine: &Engine) {
    let (worker, mut copy) = (used(engine).await, Vec::new());
    for turn in [3, 2] {
        let epoch = engine.cx.run_of(&worker).await.epoch;
        let back = rewind_to(epoch, result_place(turn));
        engine.cx.rewind(worker.run, &back).await.unwrap();
        anchor(engine, &mut copy).await;
        let last = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
        assert!(engine.cx.prune_audit(&to(worker.run, &last)).await.unwrap() > 0);
        let rows = engine.cx.audit(worker.run).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.kind.as_str()).collect::<Vec<_>>(), ["pruned"]);
        assert_eq!(problems(engine, &copy).await, [""; 0]);
    }
    let run = id(engine, worker.run);
    for turn in [3, 4] {
        let turn = format!("UPDATE boundaries SET undone = NOT undone WHERE run = {run} AND turn = {turn}");
        engine.execute(&turn).await.unwrap();
        assert!(
            problems(engine, &copy).await.iter().any(|problem| problem.contains("a rewind undid it")),
            "{turn}"
        );
        engine.execute(&turn).await.unwrap();
        assert_eq!(problems(engine, &copy).await, [""; 0]);
    }
    let other = format!("UPDATE runs SET name = 'x', lifecycle = 'finished' WHERE id = {run}");
    engine.execute(&other).await.unwrap();
    let expected = ["name", "lifecycle"].map(|column| format!("its {column} is not what the audit says"));
    assert_eq!(problems(engine, &copy).await, expected);
}

async fn audit_rows_about_dropped_payloads_are_never_pruned(engine: &Engine) {
    let worker = used(engine).await;
    assert_eq!(audit::first_needed(&engine.cx.audit(worker.run).await.unwrap()), i64::MAX);
    engine.cx.finish(&worker.finish()).await.unwrap();
    engine
        .cx
        .set_retention(worker.run, &Retention { days: 0, keep_last: Some(1), ..Retention::default() })
        .await
        .unwrap();
    while engine.cx.compact(worker.run, 500).await.unwrap().run.is_some() {}
    let dropped = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    while engine.cx.drop_expired(500).await.unwrap().run.is_some() {}
    let rows = engine.cx.audit(worker.run).await.unwrap();
    assert_eq!((audit::first_needed(&rows), dropped.kind.as_str()), (dropped.seq, "dropped"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_of_operator_and_gateway_cannot_prune() {
    let engine = with_a_role("an app that prunes").await;
    let worker = used(&engine).await;
    let rows = engine.cx.audit(worker.run).await.unwrap();
    let refused = engine.cx.prune_audit(&to(worker.run, &rows[2])).await;
    assert!(matches!(&refused, Err(Error::Unusable(why)) if why.contains("owns its tables")), "{refused:?}");
    let by_hand = engine.execute("SET dalsegno.prunes = 'yes'; DELETE FROM audit").await.unwrap_err();
    assert_eq!(by_hand.as_database_error().unwrap().code().unwrap(), "42501");
    assert_eq!(engine.cx.audit(worker.run).await.unwrap(), rows);
    assert_eq!(engine.check().await.1, []);
}

async fn calls_are_checked_against_the_rows_left_after_pruning(engine: &Engine) {
    let (worker, mut copy) = (busy(engine).await, Vec::new());
    anchor(engine, &mut copy).await;
    let rows = engine.cx.audit(worker.run).await.unwrap();
    // The call `again` was claimed once before this row and once after it.
    let last = rows.iter().find(|row| row.kind == audit::kind::ENDED).unwrap();
    engine.cx.prune_audit(&to(worker.run, last)).await.unwrap();
    let run = id(engine, worker.run);
    let after = async |sql: &str| {
        engine.execute(sql).await.unwrap();
        let found = problems_at(engine, &copy).await.into_iter();
        // The problem that no anchor names the row is left out.
        found.filter(|problem| problem.starts_with("call")).collect::<Vec<_>>()
    };
    let set = |set: &str, call: &str| format!("UPDATE calls SET {set} WHERE run = {run} AND id = '{call}'");
    assert_eq!(after("CREATE TABLE kept AS SELECT * FROM calls").await, [""; 0]);
    assert_eq!(after(&set("key = 'another'", "again")).await, [""; 0], "only a pruned row named the key");
    let other = "call \"again\": its result is not what the audit says";
    assert_eq!(after(&set("result = NULL", "again")).await, [other]);
    // The pruned rows' call names are still known.
    restore(engine).await;
    let names = "calls: calls of pruned rows are missing, or there are calls that no row records";
    assert_eq!(after(&format!("DELETE FROM calls WHERE run = {run} AND id = 'paid'")).await, [names]);
    restore(engine).await;
    assert_eq!(
        after(&set("id = 'made-up', key = 'k', result = NULL, arguments = NULL", "paid")).await,
        [names]
    );
    restore(engine).await;
    // A prune refuses to vouch for calls that do not match the rows.
    let last = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    let refused = async || engine.cx.prune_audit(&to(worker.run, &last)).await;
    for edit in [
        set("id = 'made-up', result = NULL, arguments = NULL", "paid"),
        format!("DELETE FROM calls WHERE run = {run}"),
    ] {
        engine.execute(&edit).await.unwrap();
        assert!(matches!(refused().await, Err(Error::Corrupt { .. })), "{edit}");
        restore(engine).await;
    }
    // A second `pruned` row covers more calls. Their order is by bytes, independent of the database's collation.
    engine.execute("DROP TABLE kept").await.unwrap();
    for name in ["b", "B", "a-2", "a.1", "A:3", "late"] {
        engine.cx.start_call(&worker, name, Policy::ReadOnly).await;
    }
    engine.cx.settle(&person_settles(worker.run, "refused")).await.unwrap();
    ok(engine.cx.commit(&worker.result(2)).await.unwrap());
    let calls = vec![planned("z", Policy::Ask), planned("Y", Policy::Ask)];
    ok(engine.cx.commit(&Commit { calls, ..worker.plan(3) }).await.unwrap());
    let rows = engine.cx.audit(worker.run).await.unwrap();
    let [.., before, plan] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(plan.kind, audit::kind::PLANNED);
    engine.cx.prune_audit(&to(worker.run, before)).await.unwrap();
    assert_eq!(after("CREATE TABLE kept AS SELECT * FROM calls").await, [""; 0]);
    engine.cx.start_call(&worker, "z", Policy::Ask).await;
    let open_calls = vec!["z".to_owned()];
    let result = Commit { open_calls: open_calls.clone(), ..worker.result(3) };
    ok(engine.cx.commit(&result).await.unwrap());
    let calls = vec![planned("Y", Policy::Ask)];
    ok(engine.cx.commit(&Commit { calls, open_calls, ..worker.plan(4) }).await.unwrap());
    assert_eq!(after("DROP TABLE kept").await, [""; 0]);
    let last = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    engine.cx.prune_audit(&to(worker.run, &last)).await.unwrap();
    assert_eq!(after("CREATE TABLE kept AS SELECT * FROM calls").await, [""; 0]);
    engine.execute(&format!("DELETE FROM calls WHERE run = {run} AND id = 'a-2'")).await.unwrap();
    engine.cx.start_call(&worker, "newest", Policy::ReadOnly).await;
    let last = engine.cx.audit(worker.run).await.unwrap().pop().unwrap();
    assert!(matches!(engine.cx.prune_audit(&to(worker.run, &last)).await, Err(Error::Corrupt { .. })));
    restore(engine).await;
    let delete = format!("DELETE FROM calls WHERE run = {run} AND id = 'newest'");
    let newest = "call \"newest\": the audit records it, and it is missing";
    assert_eq!(after(&delete).await, [newest], "the copy of the table is older than the call");
    assert!(matches!(engine.cx.prune_audit(&to(worker.run, &last)).await, Err(Error::Corrupt { .. })));
}
