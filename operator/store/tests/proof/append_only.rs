//! The audit is append-only, and the role of operator and gateway has only the rights that it needs.

use dalsegno_model::{Error, Rewound, Written};
use dalsegno_protocol::Policy;
use dalsegno_store::grant;
use dalsegno_store::postgres::Postgres;
use std::sync::Arc;

use crate::bundles::signer;
use crate::context::{TestContext, recorded, result_place, rewind_to, template};
use crate::stored_anchors::anchor;
use crate::stores::{batch, used};
use crate::{Engine, on_both_databases};

on_both_databases! {
    audit_rows_cannot_be_edited_or_deleted,
}

async fn audit_rows_cannot_be_edited_or_deleted(engine: &Engine) {
    used(engine).await;
    for sql in ["UPDATE audit SET actor = 'nobody'", "DELETE FROM audit", "DELETE FROM audit WHERE seq = 2"] {
        let refused = engine.execute(sql).await.unwrap_err().to_string();
        assert!(refused.contains("its rows are only ever added"), "{sql}: {refused}");
    }
    assert_eq!(engine.check().await.1, []);
}

/// Only SQLite has statements that delete conflicting rows without naming them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_rows_and_anchors_cannot_be_replaced() {
    let engine = Engine::file().await;
    used(&engine).await;
    anchor(&engine, &*signer().await).await;
    let columns = "at, kind, 'nobody', detail, parent_hash, hash FROM audit WHERE seq = 2";
    for sql in [
        format!("REPLACE INTO audit SELECT run, seq, {columns}"),
        format!(
            "REPLACE INTO audit (rowid, run, seq, at, kind, actor, detail, parent_hash, hash) \
             SELECT rowid, run, 99, {columns}"
        ),
        "REPLACE INTO anchors SELECT seq, parent_hash, root, leaves, public_key, '' FROM anchors".into(),
        "UPDATE anchor_leaves SET audit_seq = 9".into(),
        "DELETE FROM anchor_leaves".into(),
        "DELETE FROM anchors".into(),
        "REPLACE INTO anchor_leaves SELECT anchor, run, 9, audit_hash, NULL, NULL, NULL, NULL FROM anchor_leaves".into(),
        "UPDATE OR REPLACE anchors SET line = ''".into(),
    ] {
        let refused = engine.execute(&sql).await.unwrap_err().to_string();
        assert!(refused.contains("its rows are only ever added"), "{sql}: {refused}");
    }
    assert_eq!(engine.check().await.1, []);
}

/// A database whose tables belong to another role than the one that opens it.
pub async fn with_a_role(name: &str) -> Engine {
    let engine = Engine::postgres().await;
    engine.execute(&format!("CREATE ROLE \"{name}\" LOGIN")).await.unwrap();
    grant(&engine.url, name).await.unwrap();
    let url = engine.url.replacen("postgres@", &format!("{}@", name.replace(' ', "%20")), 1);
    let store = Arc::new(Postgres::connect(&url).await.unwrap());
    Engine { cx: TestContext::new(store, ()), url }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_with_minimal_rights_can_do_everything_needed() {
    let engine = with_a_role("an app").await;
    let worker = used(&engine).await;
    let claim = engine.cx.start_call(&worker, "pay", Policy::Probe).await;
    engine.cx.complete(&worker.complete(&claim)).await.unwrap();
    engine.cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    engine.cx.record_gateway_heartbeat().await.unwrap();
    // Written twice before a boundary: the second write replaces the first one's row.
    for key in ["note", "note"] {
        assert_eq!(engine.cx.write_records(&batch(&worker, key)).await.unwrap(), Written::Ok);
    }
    let before = engine.cx.run_of(&worker).await;
    let rewind = rewind_to(before.epoch, result_place(2));
    let rewound = engine.cx.rewind(worker.run, &rewind).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    let run = engine.cx.run().await;
    recorded(engine.cx.put_revision(run.id, 1, &template("hash", "document")).await.unwrap());
    engine.cx.mark_deleted(&run.object_uid).await.unwrap();
    assert_eq!(engine.cx.delete_unused_revisions(9).await.unwrap(), 1);
    engine.cx.adopt_namespace("tenant-1", "tenant-2").await.unwrap();
    engine.cx.request_cancel(worker.run).await.unwrap();
    engine.cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(engine.check().await.1, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_with_minimal_rights_cannot_tamper() {
    let engine = with_a_role("app").await;
    used(&engine).await;
    for sql in [
        "UPDATE audit SET actor = 'nobody'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "ALTER TABLE audit DISABLE TRIGGER ALL",
        "DELETE FROM anchors",
        "UPDATE anchors SET line = ''",
        "DELETE FROM anchor_leaves",
        "UPDATE anchor_leaves SET audit_seq = 9",
        "TRUNCATE anchor_leaves",
        "SELECT ds_prune_anchors_v1(9)",
        "UPDATE signing_key SET created_at = 0",
        "DELETE FROM boundaries",
        "DELETE FROM runs",
        "DROP TABLE audit",
        "UPDATE _sqlx_migrations SET success = false",
        "CREATE OR REPLACE FUNCTION ds_refuse_unless_pruned_v1() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    ] {
        let refused = engine.execute(sql).await.unwrap_err();
        let code = refused.as_database_error().unwrap().code().unwrap();
        assert_eq!(code, "42501", "{sql}: {refused}");
    }
}

#[tokio::test]
async fn rights_are_not_granted_to_the_owner_or_in_sqlite() {
    let engine = Engine::postgres().await;
    let refused = grant(&engine.url, "postgres").await.unwrap_err();
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("for another role")), "{refused}");
    let refused = grant(&engine.url, "nobody knows it").await.unwrap_err();
    assert!(matches!(refused, Error::Unusable(_)), "{refused}");
    assert!(grant("sqlite:///runs.db", "app").await.is_err());
}
