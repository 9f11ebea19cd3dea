//! Key rotation: wrapping keys that are replaced, missing or wrong.

use dalsegno_model::Error;
use dalsegno_proof::{Anchors, check_store};

use crate::{Engine, TestContext, Worker, check, export, keys, on_both_databases, read_all, worked};

on_both_databases! {
    a_rotation_rewraps_data_keys_and_changes_no_payload,
    a_damaged_data_key_does_not_stop_the_rotation_of_others,
    a_damaged_data_key_hides_no_other_run_from_the_check,
    a_wrong_or_missing_key_is_reported_and_is_no_damage,
}

/// Workers in the order of their runs' ids.
async fn some_worked(cx: &TestContext, count: usize) -> Vec<Worker> {
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(worked(cx, 1).await);
    }
    runs.sort_by_key(|worker| worker.run);
    runs
}

async fn payloads(engine: &Engine) -> String {
    let sql = if engine.is_postgres() {
        "SELECT string_agg(encode(sha256(ops || events), 'hex'), ' ' ORDER BY turn) FROM boundaries"
    } else {
        "SELECT group_concat(hex(ops) || hex(events), ' ') FROM (SELECT * FROM boundaries ORDER BY turn)"
    };
    engine.ask(sql).await
}

async fn a_rotation_rewraps_data_keys_and_changes_no_payload(engine: &Engine) {
    let cx = engine.sealed().await;
    let (one, two) = (worked(&cx, 2).await, worked(&cx, 2).await);
    let before = payloads(engine).await;
    keys::put(&engine.keys, "k2", 2);
    std::fs::write(engine.keys.path().join("current"), "k2").unwrap();
    assert_eq!(cx.rewrap_keys().await.unwrap().count, 2);
    assert_eq!(cx.rewrap_keys().await.unwrap().count, 0, "once is enough");
    assert_eq!(payloads(engine).await, before);
    std::fs::remove_file(engine.keys.path().join("k1")).unwrap();
    let later = engine.sealed().await;
    for worker in [&one, &two] {
        assert!(read_all(&later, worker.run).await.unwrap().contains("canary"));
    }
    assert!(matches!(engine.plain().await.rewrap_keys().await, Err(Error::Unusable(_))), "there are no keys");
}

async fn a_damaged_data_key_does_not_stop_the_rotation_of_others(engine: &Engine) {
    let cx = engine.sealed().await;
    let runs = some_worked(&cx, 4).await;
    let first = "(SELECT run FROM data_keys ORDER BY run LIMIT 1)";
    engine.edit(&format!("UPDATE data_keys SET wrapped = substr(wrapped, 1, 40) WHERE run = {first}")).await;
    keys::put(&engine.keys, "k2", 2);
    std::fs::write(engine.keys.path().join("current"), "k2").unwrap();
    for count in [3, 0] {
        let done = cx.rewrap_keys().await.unwrap();
        assert_eq!(done.count, count);
        assert!(
            matches!(&done.failed[..], [(run, Error::Corrupt { .. })] if *run == runs[0].run),
            "{done:?}"
        );
    }
    std::fs::remove_file(engine.keys.path().join("k1")).unwrap();
    for worker in &runs[1..] {
        read_all(&engine.sealed().await, worker.run).await.unwrap();
    }
}

async fn a_damaged_data_key_hides_no_other_run_from_the_check(engine: &Engine) {
    let cx = engine.sealed().await;
    let runs = some_worked(&cx, 3).await;
    let [damaged, away, edited] = [0, 1, 2].map(|at| runs[at].run);
    let nth = |at: usize| format!("(SELECT run FROM data_keys ORDER BY run LIMIT 1 OFFSET {at})");
    engine
        .edit(&format!("UPDATE data_keys SET wrapped = substr(wrapped, 1, 40) WHERE run = {}", nth(0)))
        .await;
    engine.edit(&format!("UPDATE data_keys SET key_id = 'k9' WHERE run = {}", nth(1))).await;
    engine.edit(&format!("UPDATE calls SET policy = 'ask' WHERE id = 'call-1' AND run = {}", nth(2))).await;
    let (summary, problems) = check(&engine.sealed().await).await;
    assert_eq!(summary.runs, 3);
    for (run, boundary_id, what) in [
        (damaged, "data key", "it is not what \"k1\" wrapped for this run"),
        (away, "data key", "\"k9\", which is missing: restore it"),
        (edited, "call \"call-1\"", "policy"),
    ] {
        let mut of_run = problems.iter().filter(|problem| problem.run == Some(run));
        let problem = of_run.next().unwrap();
        assert!(problem.location.starts_with(boundary_id) && problem.what.contains(what), "{problem}");
        assert_eq!(of_run.next(), None, "one cause, one problem");
    }
    assert!(matches!(export(&cx, damaged).await.map(drop), Err(Error::Corrupt { .. })));
    assert!(
        matches!(export(&cx, away).await.map(drop), Err(Error::Unusable(why)) if why.contains("restore it"))
    );
    let mut reading = engine.plain().await.begin_read().await.unwrap();
    let without_keys = check_store(&mut *reading, Anchors::default(), &mut |_| ()).await;
    assert!(matches!(without_keys, Err(Error::Unusable(why)) if why.contains("--encryption-keys")));
}

async fn a_wrong_or_missing_key_is_reported_and_is_no_damage(engine: &Engine) {
    let worker = worked(&engine.sealed().await, 2).await;
    let assert_refused = async |says: &str| {
        let cx = engine.sealed().await;
        for refused in [
            read_all(&cx, worker.run).await.map(drop),
            cx.commit(&crate::turn(&worker, 3)).await.map(drop),
            Err(cx.rewrap_keys().await.unwrap().failed.remove(0).1),
        ] {
            match refused {
                Err(Error::Unusable(why)) => assert!(why.contains(says), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    };
    keys::put(&engine.keys, "k2", 1);
    std::fs::write(engine.keys.path().join("current"), "k2").unwrap();
    std::fs::remove_file(engine.keys.path().join("k1")).unwrap();
    assert_refused("\"k1\", which is missing").await;
    keys::put(&engine.keys, "k1", 9);
    assert_refused("is not the key that wrapped").await;
    keys::put(&engine.keys, "k1", 1);
    assert_eq!(engine.sealed().await.rewrap_keys().await.unwrap().count, 1);
    read_all(&engine.sealed().await, worker.run).await.unwrap();
}
