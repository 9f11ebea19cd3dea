//! The keys that wrap data keys: exchanged, away, and others than they were.

use dalsegno_store::Error;
use dalsegno_store::proof::{Anchors, check_store};

use crate::{Face, Worker, World, check, export, keys, on_both, read_all, worked};

on_both! {
    a_rotation_wraps_data_keys_anew_and_touches_no_payload,
    a_data_key_that_cannot_be_unwrapped_stops_no_other,
    a_data_key_that_cannot_be_unwrapped_hides_no_other_run_from_the_proof,
    a_wrong_or_missing_key_is_told_and_no_damage,
}

/// Runs in the order of their ids.
async fn some_worked(world: &World, count: usize) -> Vec<Worker> {
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push(worked(world, 1).await);
    }
    runs.sort_by_key(|worker| worker.run);
    runs
}

async fn payloads(face: &Face) -> String {
    let sql = if face.is_postgres() {
        "SELECT string_agg(encode(sha256(ops || events), 'hex'), ' ' ORDER BY turn) FROM boundaries"
    } else {
        "SELECT group_concat(hex(ops) || hex(events), ' ') FROM (SELECT * FROM boundaries ORDER BY turn)"
    };
    face.ask(sql).await
}

async fn a_rotation_wraps_data_keys_anew_and_touches_no_payload(face: &Face) {
    let world = face.sealed().await;
    let (one, two) = (worked(&world, 2).await, worked(&world, 2).await);
    let before = payloads(face).await;
    keys::put(&face.keys, "k2", 2);
    std::fs::write(face.keys.path().join("current"), "k2").unwrap();
    assert_eq!(world.rewrap_keys().await.unwrap().count, 2);
    assert_eq!(world.rewrap_keys().await.unwrap().count, 0, "once is enough");
    assert_eq!(payloads(face).await, before);
    std::fs::remove_file(face.keys.path().join("k1")).unwrap();
    let later = face.sealed().await;
    for worker in [&one, &two] {
        assert!(read_all(&later, worker.run).await.unwrap().contains("canary"));
    }
    assert!(matches!(face.plain().await.rewrap_keys().await, Err(Error::Unfit(_))), "there are no keys");
}

async fn a_data_key_that_cannot_be_unwrapped_stops_no_other(face: &Face) {
    let world = face.sealed().await;
    let runs = some_worked(&world, 4).await;
    let first = "(SELECT run FROM data_keys ORDER BY run LIMIT 1)";
    face.edit(&format!("UPDATE data_keys SET wrapped = substr(wrapped, 1, 40) WHERE run = {first}")).await;
    keys::put(&face.keys, "k2", 2);
    std::fs::write(face.keys.path().join("current"), "k2").unwrap();
    for count in [3, 0] {
        let done = world.rewrap_keys().await.unwrap();
        assert_eq!(done.count, count);
        assert!(
            matches!(&done.failed[..], [(run, Error::Corrupt { .. })] if *run == runs[0].run),
            "{done:?}"
        );
    }
    std::fs::remove_file(face.keys.path().join("k1")).unwrap();
    for worker in &runs[1..] {
        read_all(&face.sealed().await, worker.run).await.unwrap();
    }
}

async fn a_data_key_that_cannot_be_unwrapped_hides_no_other_run_from_the_proof(face: &Face) {
    let world = face.sealed().await;
    let runs = some_worked(&world, 3).await;
    let [damaged, away, edited] = [0, 1, 2].map(|at| runs[at].run);
    let nth = |at: usize| format!("(SELECT run FROM data_keys ORDER BY run LIMIT 1 OFFSET {at})");
    face.edit(&format!("UPDATE data_keys SET wrapped = substr(wrapped, 1, 40) WHERE run = {}", nth(0))).await;
    face.edit(&format!("UPDATE data_keys SET key_id = 'k9' WHERE run = {}", nth(1))).await;
    face.edit(&format!("UPDATE calls SET policy = 'ask' WHERE id = 'call-1' AND run = {}", nth(2))).await;
    let (summary, told) = check(&face.sealed().await).await;
    assert_eq!(summary.runs, 3);
    for (run, place, what) in [
        (damaged, "data key", "it is not what \"k1\" wrapped for this run"),
        (away, "data key", "\"k9\", which is missing: restore it"),
        (edited, "call \"call-1\"", "policy"),
    ] {
        let mut of_run = told.iter().filter(|problem| problem.run == Some(run));
        let problem = of_run.next().unwrap();
        assert!(problem.place.starts_with(place) && problem.what.contains(what), "{problem}");
        assert_eq!(of_run.next(), None, "one cause, one problem");
    }
    assert!(matches!(export(&world, damaged).await.map(drop), Err(Error::Corrupt { .. })));
    assert!(
        matches!(export(&world, away).await.map(drop), Err(Error::Unfit(why)) if why.contains("restore it"))
    );
    let mut reading = face.plain().await.reading().await.unwrap();
    let without_keys = check_store(&mut *reading, Anchors::default(), &mut |_| ()).await;
    assert!(matches!(without_keys, Err(Error::Unfit(why)) if why.contains("--encryption-keys")));
}

async fn a_wrong_or_missing_key_is_told_and_no_damage(face: &Face) {
    let worker = worked(&face.sealed().await, 2).await;
    let told = async |says: &str| {
        let world = face.sealed().await;
        for refused in [
            read_all(&world, worker.run).await.map(drop),
            world.commit(&crate::turn(&worker, 3)).await.map(drop),
            Err(world.rewrap_keys().await.unwrap().failed.remove(0).1),
        ] {
            match refused {
                Err(Error::Unfit(why)) => assert!(why.contains(says), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    };
    keys::put(&face.keys, "k2", 1);
    std::fs::write(face.keys.path().join("current"), "k2").unwrap();
    std::fs::remove_file(face.keys.path().join("k1")).unwrap();
    told("\"k1\", which is missing").await;
    keys::put(&face.keys, "k1", 9);
    told("is not the key that wrapped").await;
    keys::put(&face.keys, "k1", 1);
    assert_eq!(face.sealed().await.rewrap_keys().await.unwrap().count, 1);
    read_all(&face.sealed().await, worker.run).await.unwrap();
}
