//! What is stored in the database, and what can open it.

use dalsegno_model::Error;
use dalsegno_proof::bundle;
use dalsegno_proof::verify::{self, Checkpoint};
use sha2::{Digest as _, Sha256};

use crate::{CANARY, Engine, check, hex, on_both_databases, read_all, turn, worked};

on_both_databases! {
    no_payload_is_stored_in_clear,
    no_digest_reveals_a_payload,
    a_sealed_run_without_keys_is_refused_and_not_called_corrupt,
    a_ciphertext_in_another_place_is_damage,
    a_sealed_run_is_exported_and_verified_without_keys,
    the_check_of_a_whole_store_opens_sealed_payloads,
    a_damaged_byte_of_a_plain_run_is_not_taken_for_a_seal,
}

/// Every payload and digest of all tables, in hexadecimal.
async fn dump(engine: &Engine) -> String {
    let mut dump = String::new();
    for (table, columns) in [
        ("boundaries", &["ops", "events", "digest", "ops_digest", "events_digest", "records_digest"][..]),
        ("calls", &["arguments", "result"]),
        ("waits", &["request", "answer", "digest"]),
        ("records", &["value"]),
        ("record_batches", &["digest"]),
        ("record_changes", &["digest", "batch"]),
        ("snapshots", &["document", "digest"]),
        ("chunks", &["hash", "payload"]),
        ("runs", &["head_digest", "finish_digest", "records_digest"]),
    ] {
        for column in columns {
            let sql = if engine.is_postgres() {
                format!("SELECT coalesce(string_agg(encode({column}, 'hex'), ' '), '') FROM {table}")
            } else {
                format!("SELECT coalesce(group_concat(lower(hex({column})), ' '), '') FROM {table}")
            };
            dump += &engine.ask(&sql).await;
            dump.push(' ');
        }
    }
    dump
}

async fn no_payload_is_stored_in_clear(engine: &Engine) {
    let cx = engine.sealed().await;
    worked(&cx, 12).await;
    let decoded = dump(engine).await;
    assert!(decoded.len() > 5_000 && !decoded.contains(&hex(CANARY.as_bytes())));

    // Check the search itself: without encryption it finds the canary.
    let plain = Engine { keys: crate::keys::folder(), ..another(engine).await };
    worked(&plain.plain().await, 12).await;
    assert!(dump(&plain).await.contains(&hex(CANARY.as_bytes())));
}

/// Another database of the same kind.
async fn another(engine: &Engine) -> Engine {
    if engine.is_postgres() { Engine::postgres().await } else { Engine::file().await }
}

async fn no_digest_reveals_a_payload(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = worked(&cx, 12).await;
    let commit = turn(&worker, 13);
    let record = format!(r#"{{"json":"{CANARY}"}}"#);
    let digests = [
        commit.digest,
        Sha256::digest(&record).into(),
        Sha256::digest(commit.ops.as_ref().unwrap()).into(),
        dalsegno_format::header::events_digest(&commit.events).unwrap(),
    ];
    cx.commit(&commit).await.unwrap();
    cx.finish(&worker.finish()).await.unwrap();
    let decoded = dump(engine).await;
    for digest in digests {
        assert!(!decoded.contains(&hex(&digest)));
    }
    let plain = Engine { keys: crate::keys::folder(), ..another(engine).await };
    let cx = plain.plain().await;
    let worker = cx.worker().await;
    let commit = turn(&worker, 1);
    cx.commit(&commit).await.unwrap();
    let decoded = dump(&plain).await;
    for digest in [commit.digest, Sha256::digest(&record).into()] {
        assert!(decoded.contains(&hex(&digest)), "the search finds it");
    }
}

async fn a_sealed_run_without_keys_is_refused_and_not_called_corrupt(engine: &Engine) {
    let worker = worked(&engine.sealed().await, 12).await;
    let cx = engine.plain().await;
    match read_all(&cx, worker.run).await {
        Err(Error::Unusable(why)) => assert!(why.contains("--encryption-keys"), "{why}"),
        other => panic!("{other:?}"),
    }
    let run = cx.run_of(&worker).await;
    assert!(matches!(verify::checkpoint(&*cx.store, &run).await, Err(Error::Unusable(_))));
}

/// Each edit, and whether a resume needs the damaged row. If it does, the run must be held before a worker meets the
/// damage.
const EDITS: [(&str, bool); 16] = [
    (
        "UPDATE boundaries SET ops = (SELECT ops FROM boundaries o WHERE o.turn = 2 AND o.run = boundaries.run) WHERE turn = 3",
        true,
    ),
    ("UPDATE boundaries SET ops = events WHERE turn = 3", true),
    (
        "UPDATE boundaries SET events = (SELECT events FROM boundaries o WHERE o.turn = 2 AND o.run = boundaries.run) WHERE turn = 3",
        true,
    ),
    ("UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) WHERE turn = 3", true),
    ("UPDATE boundaries SET ops = substr(ops, 1, 9) WHERE turn = 3", true),
    (
        "UPDATE calls SET turn = 4, arguments = (SELECT arguments FROM calls o WHERE o.id = 'call-2' AND o.run = calls.run) WHERE id = 'call-3'",
        true,
    ),
    (
        "UPDATE calls SET state = 'started', attempt = 1, arguments = substr(arguments, 1, 9) WHERE id = 'call-3'",
        true,
    ),
    ("UPDATE calls SET state = 'failed', result = arguments WHERE id = 'call-3'", false),
    ("UPDATE calls SET state = 'planned', arguments = result WHERE id LIKE 'claimed-%'", true),
    ("UPDATE calls SET result = arguments WHERE id LIKE 'claimed-%'", true),
    (
        "UPDATE records SET value = (SELECT value FROM records o WHERE o.key = 'b' AND o.run = records.run) WHERE key = 'k'",
        false,
    ),
    ("UPDATE waits SET request = answer WHERE answer IS NOT NULL", false),
    ("UPDATE waits SET answer = substr(answer, 1, 9) WHERE answer IS NOT NULL", false),
    ("UPDATE data_keys SET wrapped = substr(wrapped, 1, length(wrapped) - 1) WHERE key_id = 'k1'", true),
    ("UPDATE data_keys SET wrapped = NULL, key_id = NULL, shredded_at = 1 WHERE key_id = 'k1'", true),
    ("DELETE FROM data_keys WHERE key_id = 'k1'", true),
];

async fn a_ciphertext_in_another_place_is_damage(engine: &Engine) {
    for (edit, holds) in EDITS {
        let engine = another(engine).await;
        let worker = worked(&engine.sealed().await, 3).await;
        engine.edit(edit).await;
        let cx = engine.sealed().await;
        let refused = read_all(&cx, worker.run).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{edit}: {refused:?}");
        let run = cx.run_of(&worker).await;
        match verify::checkpoint(&*cx.store, &run).await.unwrap() {
            Checkpoint::Valid => assert!(!holds, "{edit}"),
            Checkpoint::Corrupt(found) => {
                assert!(holds, "{edit}: {found:?}");
                let of_a_call = edit.starts_with("UPDATE calls");
                assert_eq!(found.detail.contains("call \"c"), of_a_call, "{edit}: {found:?}");
                assert!(!of_a_call || found.last_good.is_none(), "no rewind repairs a call: {found:?}");
            }
        }
    }
}

async fn a_sealed_run_is_exported_and_verified_without_keys(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = worked(&cx, 12).await;
    let bytes = crate::bundle(&cx, worker.run).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.boundaries, verified.shredded), (vec![], 12, false));
    let state = bundle::state(&*bytes, 7).unwrap().unwrap();
    assert_eq!(format!("{state:?}"), format!("{:?}", cx.state(worker.run, Some(7)).await.unwrap().unwrap()));

    // The chain also shows a payload edited after signing, and a wrong digest key.
    let text = String::from_utf8(bytes).unwrap();
    let keys: Vec<_> = text.split(r#""digestKey":""#).map(|rest| rest.split('"').next().unwrap()).collect();
    for (from, to) in [(&*format!("{CANARY} 7"), &*format!("{CANARY} 8")), (keys[1], keys[2])] {
        let edited = text.replacen(from, to, 1);
        let verified = bundle::verify(edited.as_bytes(), None).unwrap();
        let problems: Vec<_> = verified.problems.iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|it| it.contains("another payload")), "{problems:?}");
    }
}

async fn the_check_of_a_whole_store_opens_sealed_payloads(engine: &Engine) {
    worked(&engine.sealed().await, 12).await;
    let (summary, problems) = check(&engine.sealed().await).await;
    assert_eq!((problems, summary.boundaries, summary.snapshots, summary.shredded), (vec![], 12, 1, 0));
    engine.edit("UPDATE boundaries SET ops = events WHERE turn = 5").await;
    let (_, problems) = check(&engine.sealed().await).await;
    assert!(problems.iter().any(|problem| problem.location.contains("turn 5")), "{problems:?}");
}

async fn a_damaged_byte_of_a_plain_run_is_not_taken_for_a_seal(engine: &Engine) {
    let cx = engine.plain().await;
    let worker = worked(&cx, 3).await;
    let edited = if engine.is_postgres() {
        "'\\x11'::bytea || substr(ops, 2)"
    } else {
        "CAST(x'11' || substr(ops, 2) AS BLOB)"
    };
    engine.edit(&format!("UPDATE boundaries SET ops = {edited} WHERE turn = 3")).await;
    for cx in [cx, engine.sealed().await] {
        let refused = cx.state(worker.run, None).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
}
