//! What stands in the database, and what opens it.

use dalsegno_protocol::{Payload, Policy, RecordOp};
use dalsegno_store::proof::bundle;
use dalsegno_store::verify::{self, Checkpoint};
use dalsegno_store::{
    AskedBy, Class, Completed, Ending, Error, Identity, NewRun, PodRecord, RecordBatch, RunRecord, Settle,
    SettledBy, Then, Verdict, Written,
};
use sha2::{Digest as _, Sha256};

use crate::world::{attached, ending, json, new_run, ok, random, recorded};
use crate::{CANARY, Face, Worker, World, check, on_both, read_all, turn, worked};

on_both! {
    nothing_that_a_worker_wrote_stands_there_in_clear,
    what_is_left_in_clear_stands_in_these_columns_and_in_no_other,
    no_digest_tells_what_was_written,
    without_keys_a_sealed_run_is_refused_and_not_called_corrupt,
    a_ciphertext_elsewhere_is_damage,
    a_sealed_run_is_exported_and_verified_without_keys,
    the_check_of_a_whole_store_has_keys,
    a_damaged_byte_of_a_plain_run_is_not_taken_for_a_seal,
}

/// All rows of all tables that hold payloads, as hexadecimal or as text.
async fn dump(face: &Face) -> String {
    let mut dump = String::new();
    for (table, columns) in [
        ("boundaries", &["ops", "events", "digest", "ops_digest", "events_digest", "records_digest"][..]),
        ("calls", &["arguments", "result"]),
        ("records", &["value"]),
        ("record_batches", &["digest"]),
        ("record_changes", &["digest", "batch"]),
        ("snapshots", &["document", "digest"]),
        ("chunks", &["hash", "payload"]),
        ("runs", &["head_digest", "finish_digest", "records_digest"]),
    ] {
        for column in columns {
            let sql = if face.is_postgres() {
                format!("SELECT coalesce(string_agg(encode({column}, 'hex'), ' '), '') FROM {table}")
            } else {
                format!("SELECT coalesce(group_concat(lower(hex({column})), ' '), '') FROM {table}")
            };
            dump += &face.ask(&sql).await;
            dump.push(' ');
        }
    }
    dump
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn nothing_that_a_worker_wrote_stands_there_in_clear(face: &Face) {
    let world = face.sealed().await;
    worked(&world, 12).await;
    let kept = dump(face).await;
    assert!(kept.len() > 5_000 && !kept.contains(&hex(CANARY.as_bytes())));

    // What is looked for is found where nothing is sealed.
    let plain = Face { keys: crate::keys::folder(), ..again(face).await };
    worked(&plain.plain().await, 12).await;
    assert!(dump(&plain).await.contains(&hex(CANARY.as_bytes())));
}

/// Another database of the same kind.
async fn again(face: &Face) -> Face {
    if face.is_postgres() { Face::postgres().await } else { Face::file().await }
}

/// The columns that docs/reference/encryption.md lists as stored in clear, in order. The test writes the canary into each of them.
const IN_CLEAR: [&str; 32] = [
    "attempts.agent_version",
    "attempts.candidates",
    "attempts.image_digest",
    "attempts.message",
    "attempts.node",
    "attempts.pod_name",
    "attempts.pod_uid",
    "attempts.remark",
    "attempts.revision",
    "audit.actor",
    "audit.detail",
    "boundaries.trigger_word",
    "calls.id",
    "calls.key",
    "calls.reason",
    "calls.settled_by",
    "data_keys.key_id",
    "record_changes.batch",
    "records.entry_id",
    "records.key",
    "records.space",
    "revisions.document",
    "revisions.hash",
    "runs.finish_message",
    "runs.finish_output",
    "runs.finish_reason",
    "runs.name",
    "runs.namespace",
    "runs.object_uid",
    "runs.pod_uid",
    "runs.remark",
    "runs.tenant",
];

/// The canary goes into every text that the store takes, from workers, operators and people. It can be read in the
/// columns of [`IN_CLEAR`] and in no other column, also after the run's data key was shredded.
async fn what_is_left_in_clear_stands_in_these_columns_and_in_no_other(face: &Face) {
    crate::keys::put(&face.keys, CANARY, 2);
    std::fs::write(face.keys.path().join("current"), CANARY).unwrap();
    let world = face.sealed().await;
    let run = world.take_up(&canary_run()).await;
    let worker = canary_attempt(&world, &run).await;
    canary_writes(&world, &worker).await;
    world.start_call(&worker, &format!("{CANARY} lost"), Policy::Probe).await;

    let ending = Ending { message: CANARY.into(), ..ending(1, Class::Crash) };
    let run = world.end_attempt(run.id, &ending, &Then::Reserve).await.unwrap();
    let asked = AskedBy { manager: Some(CANARY.into()), reason: Some(CANARY.into()) };
    world.store.reset_budget(run.id, 0, 1, &asked).await.unwrap();
    let worker = canary_attempt(&world, &run).await;
    let settle = Settle {
        by: SettledBy::Person(CANARY.into()),
        reason: CANARY.into(),
        result: Some(json(&format!("{CANARY:?}"))),
        ..worker.settle(&format!("{CANARY} lost"))
    };
    assert!(matches!(world.settle(&settle).await.unwrap(), Completed::Ok));
    let mut finish = worker.finish();
    finish.finish.reason = CANARY.into();
    finish.finish.message = CANARY.into();
    finish.finish.output = Some(format!("{CANARY:?}"));
    world.finish(&finish).await.unwrap();

    assert_eq!(in_clear(face).await, IN_CLEAR);
    world.shred(worker.run, CANARY, CANARY).await.unwrap();
    let left: Vec<_> = in_clear(face).await;
    // The id of the key that wrapped the data key goes with the data key.
    let after: Vec<_> = IN_CLEAR.into_iter().filter(|column| *column != "data_keys.key_id").collect();
    assert_eq!(left, after, "shredding does not reach them");
}

/// A run whose every name holds the canary.
fn canary_run() -> NewRun {
    let new = new_run();
    NewRun {
        tenant: CANARY.into(),
        namespace: CANARY.into(),
        name: CANARY.into(),
        object_uid: format!("{CANARY} {}", new.id),
        ..new
    }
}

/// A pod and a worker for the run's reserved attempt. Every name that the operator records holds the canary.
async fn canary_attempt(world: &World, run: &RunRecord) -> Worker {
    let number = run.attempt.number;
    recorded(world.put_revision(run.id, number, CANARY, CANARY).await.unwrap());
    let identity = Identity {
        image_digest: CANARY.into(),
        agent_version: CANARY.into(),
        verdict: Verdict::Accepted,
        remark: CANARY.into(),
    };
    let pod = PodRecord {
        uid: format!("{CANARY} {number}"),
        name: CANARY.into(),
        revision: CANARY.into(),
        identity: Some(identity),
    };
    recorded(world.record_pod(run.id, number, &pod).await.unwrap());
    recorded(world.record_scheduled(run.id, number, CANARY).await.unwrap());
    let capability = random();
    attached(world.attach(run.id, &pod.uid, &capability).await.unwrap());
    let (run, object_uid) = (run.id, run.object_uid.clone());
    Worker { run, object_uid, attempt: number, pod_uid: pod.uid, capability }
}

/// Turns, calls and records of a worker, with the canary in each text, and a snapshot.
async fn canary_writes(world: &World, worker: &Worker) {
    for number in 1..=12 {
        let mut commit = turn(worker, number);
        commit.trigger = Some(CANARY.into());
        commit.calls[0].id = format!("{CANARY} {number}");
        commit.calls[0].key = format!("{CANARY} {number}");
        ok(world.commit(&commit).await.unwrap());
    }
    let value = || Payload::Json(json(&format!("{CANARY:?}")));
    let (space, key) = (String::from(CANARY), String::from(CANARY));
    let operations = vec![
        RecordOp::Put { space: space.clone(), key: key.clone(), value: value() },
        RecordOp::Append { space, key, entry_id: CANARY.into(), value: value() },
    ];
    let batch = RecordBatch { operations, ..crate::batch(worker) };
    assert_eq!(world.write_records(&batch).await.unwrap(), Written::Ok);
    let claim = world.start_call(worker, &format!("{CANARY} claimed"), Policy::Probe).await;
    world.complete(&worker.complete(&claim)).await.unwrap();
    world.snapshot(worker.run).await.unwrap();
}

/// Every column of every table in which the canary can be read.
async fn in_clear(face: &Face) -> Vec<String> {
    let columns = if face.is_postgres() {
        "SELECT string_agg(table_name || '.' || column_name, ' ' ORDER BY table_name, column_name) \
         FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name) \
         WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'"
    } else {
        "SELECT group_concat(name, ' ') FROM (SELECT t.name || '.' || c.name AS name \
         FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table' ORDER BY name)"
    };
    let mut found = Vec::new();
    for name in face.ask(columns).await.split(' ') {
        let (table, column) = name.split_once('.').unwrap();
        let is_there = if face.is_postgres() {
            format!(
                "\"{column}\"::text LIKE '%{CANARY}%' OR \"{column}\"::text LIKE '%{}%'",
                hex(CANARY.as_bytes())
            )
        } else {
            format!("instr(CAST(\"{column}\" AS BLOB), CAST('{CANARY}' AS BLOB)) > 0")
        };
        let sql = format!("SELECT CAST(count(*) AS text) FROM \"{table}\" WHERE {is_there}");
        if face.ask(&sql).await != "0" {
            found.push(name.to_owned());
        }
    }
    found
}

async fn no_digest_tells_what_was_written(face: &Face) {
    let world = face.sealed().await;
    let worker = worked(&world, 12).await;
    let commit = turn(&worker, 13);
    let record = format!(r#"{{"json":"{CANARY}"}}"#);
    let digests = [
        commit.digest,
        Sha256::digest(&record).into(),
        Sha256::digest(commit.ops.as_ref().unwrap()).into(),
        dalsegno_store::header::events_digest(&commit.events).unwrap(),
    ];
    world.commit(&commit).await.unwrap();
    world.finish(&worker.finish()).await.unwrap();
    let kept = dump(face).await;
    for digest in digests {
        assert!(!kept.contains(&hex(&digest)));
    }
    let plain = Face { keys: crate::keys::folder(), ..again(face).await };
    let world = plain.plain().await;
    let worker = world.worker().await;
    let commit = turn(&worker, 1);
    world.commit(&commit).await.unwrap();
    let kept = dump(&plain).await;
    for digest in [commit.digest, Sha256::digest(&record).into()] {
        assert!(kept.contains(&hex(&digest)), "what is looked for is found");
    }
}

async fn without_keys_a_sealed_run_is_refused_and_not_called_corrupt(face: &Face) {
    let worker = worked(&face.sealed().await, 12).await;
    let world = face.plain().await;
    match read_all(&world, worker.run).await {
        Err(Error::Unfit(why)) => assert!(why.contains("--encryption-keys"), "{why}"),
        other => panic!("{other:?}"),
    }
    let run = world.of(&worker).await;
    assert!(matches!(verify::checkpoint(&*world.store, &run).await, Err(Error::Unfit(_))));
}

/// Each edit, and whether a run goes on from what it damages: then it is held, and nobody has to meet it first.
const EDITS: [(&str, bool); 14] = [
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
    ("UPDATE data_keys SET wrapped = substr(wrapped, 1, length(wrapped) - 1) WHERE key_id = 'k1'", true),
    ("UPDATE data_keys SET wrapped = NULL, key_id = NULL, shredded_at = 1 WHERE key_id = 'k1'", true),
    ("DELETE FROM data_keys WHERE key_id = 'k1'", true),
];

async fn a_ciphertext_elsewhere_is_damage(face: &Face) {
    for (edit, holds) in EDITS {
        let face = again(face).await;
        let worker = worked(&face.sealed().await, 3).await;
        face.edit(edit).await;
        let world = face.sealed().await;
        let refused = read_all(&world, worker.run).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{edit}: {refused:?}");
        let run = world.of(&worker).await;
        match verify::checkpoint(&*world.store, &run).await.unwrap() {
            Checkpoint::Sound => assert!(!holds, "{edit}"),
            Checkpoint::Corrupt(found) => {
                assert!(holds, "{edit}: {found:?}");
                let of_a_call = edit.starts_with("UPDATE calls");
                assert_eq!(found.detail.contains("call \"c"), of_a_call, "{edit}: {found:?}");
                assert!(!of_a_call || found.last_good.is_none(), "no rewind mends a call: {found:?}");
            }
        }
    }
}

async fn a_sealed_run_is_exported_and_verified_without_keys(face: &Face) {
    let world = face.sealed().await;
    let worker = worked(&world, 12).await;
    let bytes = bundle_of(&world, &worker).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.boundaries, verified.shredded), (vec![], 12, false));
    let state = bundle::state(&*bytes, 7).unwrap().unwrap();
    assert_eq!(
        format!("{state:?}"),
        format!("{:?}", world.state(worker.run, Some(7)).await.unwrap().unwrap())
    );

    // Of a payload that was bent after it was signed the chain tells too, and of a digest key that is another.
    let text = String::from_utf8(bytes).unwrap();
    let keys: Vec<_> = text.split(r#""digestKey":""#).map(|rest| rest.split('"').next().unwrap()).collect();
    for (from, to) in [(&*format!("{CANARY} 7"), &*format!("{CANARY} 8")), (keys[1], keys[2])] {
        let bent = text.replacen(from, to, 1);
        let verified = bundle::verify(bent.as_bytes(), None).unwrap();
        let told: Vec<_> = verified.problems.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|it| it.contains("another payload")), "{told:?}");
    }
}

async fn bundle_of(world: &crate::World, worker: &crate::Worker) -> Vec<u8> {
    crate::bundle(world, worker.run).await
}

async fn the_check_of_a_whole_store_has_keys(face: &Face) {
    worked(&face.sealed().await, 12).await;
    let (summary, problems) = check(&face.sealed().await).await;
    assert_eq!((problems, summary.boundaries, summary.snapshots, summary.shredded), (vec![], 12, 1, 0));
    face.edit("UPDATE boundaries SET ops = events WHERE turn = 5").await;
    let (_, problems) = check(&face.sealed().await).await;
    assert!(problems.iter().any(|problem| problem.place.contains("turn 5")), "{problems:?}");
}

async fn a_damaged_byte_of_a_plain_run_is_not_taken_for_a_seal(face: &Face) {
    let world = face.plain().await;
    let worker = worked(&world, 3).await;
    let bent = if face.is_postgres() {
        "'\\x11'::bytea || substr(ops, 2)"
    } else {
        "CAST(x'11' || substr(ops, 2) AS BLOB)"
    };
    face.edit(&format!("UPDATE boundaries SET ops = {bent} WHERE turn = 3")).await;
    for world in [world, face.sealed().await] {
        let refused = world.state(worker.run, None).await;
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    }
}
