//! The texts that encryption leaves in clear: in which columns they are, and that they are in no other.

use dalsegno_model::{
    BudgetReset, Claim, Claimed, Class, Completed, Ending, Identity, NewMessage, NewRun, NextStep,
    OpenWaitRequest, PodRecord, RecordBatch, RequestedBy, RunRecord, Sent, Settle, SettledBy, Verdict,
    WaitAsks, WaitOpened, Written,
};
use dalsegno_protocol::{OnTimeout, Payload, Policy, RecordOp};

use crate::context::{attached, ending, json, new_run, ok, random_digest, recorded, template};
use crate::{CANARY, Engine, TestContext, Worker, hex, on_both_databases, shred, turn};

on_both_databases! {
    clear_text_is_stored_in_exactly_these_columns,
}

/// The columns that docs/reference/encryption.md lists as stored in clear, in order. The test writes the canary into each.
const IN_CLEAR: [&str; 35] = [
    "attempts.agent_version",
    "attempts.candidates",
    "attempts.image_digest",
    "attempts.node",
    "attempts.pod_name",
    "attempts.pod_uid",
    "attempts.remark",
    "attempts.revision",
    "audit.actor",
    "audit.detail",
    "boundaries.trigger_word",
    "calls.id",
    "calls.reason",
    "calls.settled_by",
    "calls.tool",
    "data_keys.key_id",
    "messages.author",
    "messages.id",
    "messages.topic",
    "record_changes.batch",
    "records.entry_id",
    "records.key",
    "records.space",
    "revisions.document",
    "revisions.hash",
    "runs.finish_reason",
    "runs.name",
    "runs.namespace",
    "runs.object_uid",
    "runs.pod_uid",
    "runs.remark",
    "runs.tenant",
    "waits.id",
    "waits.provider",
    "waits.topic",
];

/// The canary goes into every text that the store takes, from workers, operators and people. It can be read in the
/// columns of [`IN_CLEAR`] and in no other column, also after the run's data key was shredded.
async fn clear_text_is_stored_in_exactly_these_columns(engine: &Engine) {
    crate::keys::put(&engine.keys, CANARY, 2);
    std::fs::write(engine.keys.path().join("current"), CANARY).unwrap();
    let cx = engine.sealed().await;
    let run = cx.create(&canary_run()).await;
    let worker = canary_attempt(&cx, &run).await;
    canary_writes(&cx, &worker).await;
    cx.start_call(&worker, &format!("{CANARY} lost"), Policy::Probe).await;

    let ending = Ending { message: CANARY.into(), ..ending(1, Class::Crash) };
    let run = cx.end_attempt(run.id, &ending, &NextStep::Reserve).await.unwrap();
    let requested_by =
        RequestedBy { manager: Some(CANARY.into()), user: Some(CANARY.into()), reason: Some(CANARY.into()) };
    let reset = BudgetReset { observed: 0, to: 1, requested_by };
    cx.store.reset_budget(run.id, &reset).await.unwrap();
    let worker = canary_attempt(&cx, &run).await;
    let settle = Settle {
        by: SettledBy::Person(CANARY.into()),
        reason: CANARY.into(),
        result: Some(json(&format!("{CANARY:?}"))),
        ..worker.settle(&format!("{CANARY} lost"))
    };
    assert!(matches!(cx.settle(&settle).await.unwrap(), Completed::Ok));
    let mut finish = worker.finish();
    finish.finish.reason = CANARY.into();
    finish.finish.message = CANARY.into();
    finish.finish.output = Some(format!("{CANARY:?}"));
    cx.finish(&finish).await.unwrap();

    assert_eq!(in_clear(engine).await, IN_CLEAR);
    cx.shred(&shred(worker.run, CANARY, CANARY)).await.unwrap();
    let left: Vec<_> = in_clear(engine).await;
    // The id of the key that wrapped the data key is deleted with the data key.
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
async fn canary_attempt(cx: &TestContext, run: &RunRecord) -> Worker {
    let number = run.attempt.number;
    recorded(cx.put_revision(run.id, number, &template(CANARY, CANARY)).await.unwrap());
    let identity = Identity {
        in_registry: Some(true),
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
    recorded(cx.record_pod(run.id, number, &pod).await.unwrap());
    recorded(cx.record_scheduled(run.id, number, CANARY).await.unwrap());
    let capability = random_digest();
    attached(cx.attach(run.id, &pod.uid, &capability).await.unwrap());
    let (run, object_uid) = (run.id, run.object_uid.clone());
    Worker { run, object_uid, attempt: number, pod_uid: pod.uid, capability }
}

/// Turns, calls and records of a worker, with the canary in each text, and a snapshot.
async fn canary_writes(cx: &TestContext, worker: &Worker) {
    for number in 1..=12 {
        let mut commit = turn(worker, number);
        commit.trigger = Some(CANARY.into());
        commit.calls[0].id = format!("{CANARY} {number}");
        commit.calls[0].key = format!("{CANARY} {number}");
        ok(cx.commit(&commit).await.unwrap());
    }
    let value = || Payload::Json(json(&format!("{CANARY:?}")));
    let (space, key) = (String::from(CANARY), String::from(CANARY));
    let operations = vec![
        RecordOp::Put { space: space.clone(), key: key.clone(), value: value() },
        RecordOp::Append { space, key, entry_id: CANARY.into(), value: value() },
    ];
    let batch = RecordBatch { operations, ..crate::batch(worker) };
    assert_eq!(cx.write_records(&batch).await.unwrap(), Written::Ok);
    for (id, asks) in [
        ("limit", WaitAsks::RateLimit { provider: CANARY.into(), reset: None }),
        ("message", WaitAsks::Message(Some(CANARY.into()))),
    ] {
        let request = OpenWaitRequest {
            run: worker.run,
            capability: worker.capability,
            id: format!("{CANARY} {id}"),
            digest: random_digest(),
            body: json(&format!("{CANARY:?}")),
            asks,
            deadline_ms: None,
            on_timeout: OnTimeout::Answer,
        };
        assert!(matches!(cx.open_wait(&request).await.unwrap(), WaitOpened::Wait(_)));
    }
    crate::waits(cx, worker).await;
    let message = NewMessage {
        run: worker.run,
        id: CANARY.into(),
        topic: Some(CANARY.into()),
        value: json(&format!("{CANARY:?}")),
        author: CANARY.into(),
        audit_id: None,
    };
    assert!(matches!(cx.send_message(&message).await.unwrap(), Sent::Ok(_)));
    let claim =
        Claim { tool: Some(CANARY.into()), ..worker.claim(&format!("{CANARY} claimed"), Policy::Probe) };
    assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
    cx.complete(&worker.complete(&claim)).await.unwrap();
    cx.snapshot(worker.run).await.unwrap();
}

/// Every column of every table in which the canary can be read.
async fn in_clear(engine: &Engine) -> Vec<String> {
    let columns = if engine.is_postgres() {
        "SELECT string_agg(table_name || '.' || column_name, ' ' ORDER BY table_name, column_name) \
         FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name) \
         WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'"
    } else {
        "SELECT group_concat(name, ' ') FROM (SELECT t.name || '.' || c.name AS name \
         FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table' ORDER BY name)"
    };
    let mut found = Vec::new();
    for name in engine.ask(columns).await.split(' ') {
        let (table, column) = name.split_once('.').unwrap();
        let is_there = if engine.is_postgres() {
            format!(
                "\"{column}\"::text LIKE '%{CANARY}%' OR \"{column}\"::text LIKE '%{}%'",
                hex(CANARY.as_bytes())
            )
        } else {
            format!("instr(CAST(\"{column}\" AS BLOB), CAST('{CANARY}' AS BLOB)) > 0")
        };
        let sql = format!("SELECT CAST(count(*) AS text) FROM \"{table}\" WHERE {is_there}");
        if engine.ask(&sql).await != "0" {
            found.push(name.to_owned());
        }
    }
    found
}
