//! The audit is only added to, and the role of operator and gateway has no more rights than it needs.

use dalsegno_protocol::{Boundary, Policy};
use dalsegno_store::postgres::Postgres;
use dalsegno_store::{Error, Place, Rewind, Rewound, Written, grant};
use std::sync::Arc;

use crate::anchors::anchor;
use crate::bundles::signer;
use crate::stores::{batch, worked_with};
use crate::world::{World, recorded};
use crate::{Face, on_both};

on_both! {
    nobody_edits_or_deletes_a_row_of_the_audit,
}

async fn nobody_edits_or_deletes_a_row_of_the_audit(face: &Face) {
    worked_with(face).await;
    for sql in ["UPDATE audit SET actor = 'nobody'", "DELETE FROM audit", "DELETE FROM audit WHERE seq = 2"] {
        let refused = face.execute(sql).await.unwrap_err().to_string();
        assert!(refused.contains("its rows are only ever added"), "{sql}: {refused}");
    }
    assert_eq!(face.check().await.1, []);
}

/// SQLite alone has statements that delete unseen what stands in their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_replaces_a_row_of_the_audit_or_an_anchor() {
    let face = Face::file().await;
    worked_with(&face).await;
    anchor(&face, &*signer().await).await;
    let columns = "at, kind, 'nobody', detail, parent_hash, hash FROM audit WHERE seq = 2";
    for sql in [
        format!("REPLACE INTO audit SELECT run, seq, {columns}"),
        format!(
            "REPLACE INTO audit (rowid, run, seq, at, kind, actor, detail, parent_hash, hash) \
             SELECT rowid, run, 99, {columns}"
        ),
        "REPLACE INTO anchors SELECT seq, hash, '' FROM anchors".into(),
        "UPDATE OR REPLACE anchors SET line = ''".into(),
    ] {
        let refused = face.execute(&sql).await.unwrap_err().to_string();
        assert!(refused.contains("its rows are only ever added"), "{sql}: {refused}");
    }
    assert_eq!(face.check().await.1, []);
}

/// A face whose tables belong to another role than the one that it is opened as.
pub async fn with_a_role(name: &str) -> Face {
    let face = Face::postgres().await;
    face.execute(&format!("CREATE ROLE \"{name}\" LOGIN")).await.unwrap();
    grant(&face.url, name).await.unwrap();
    let url = face.url.replacen("postgres@", &format!("{}@", name.replace(' ', "%20")), 1);
    let store = Arc::new(Postgres::connect(&url).await.unwrap());
    Face { world: World::new(store, ()), url }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_with_the_least_rights_does_all_the_work() {
    let face = with_a_role("an app").await;
    let worker = worked_with(&face).await;
    let claim = face.world.start_call(&worker, "pay", Policy::Probe).await;
    face.world.complete(&worker.complete(&claim)).await.unwrap();
    face.world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    face.world.beat().await.unwrap();
    // Written twice before a boundary: the first row is replaced, and gone.
    for key in ["note", "note"] {
        assert_eq!(face.world.write_records(&batch(&worker, key)).await.unwrap(), Written::Ok);
    }
    let before = face.world.of(&worker).await;
    let to = Place { turn: 2, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: before.epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let rewound = face.world.rewind(worker.run, &rewind).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    let run = face.world.run().await;
    recorded(face.world.put_revision(run.id, 1, "hash", "document").await.unwrap());
    face.world.mark_deleted(&run.object_uid).await.unwrap();
    assert_eq!(face.world.drop_revisions(9).await.unwrap(), 1);
    face.world.adopt_namespace("tenant-1", "tenant-2", "ada", "restored").await.unwrap();
    face.world.request_cancel(worker.run).await.unwrap();
    face.world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(face.check().await.1, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_with_the_least_rights_bends_nothing() {
    let face = with_a_role("app").await;
    worked_with(&face).await;
    for sql in [
        "UPDATE audit SET actor = 'nobody'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "ALTER TABLE audit DISABLE TRIGGER ALL",
        "DELETE FROM anchors",
        "UPDATE anchors SET line = ''",
        "UPDATE signing_key SET created_at = 0",
        "DELETE FROM boundaries",
        "DELETE FROM runs",
        "DROP TABLE audit",
        "UPDATE _sqlx_migrations SET success = false",
        "CREATE OR REPLACE FUNCTION ds_refuse_v1() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    ] {
        let refused = face.execute(sql).await.unwrap_err();
        let code = refused.as_database_error().unwrap().code().unwrap();
        assert_eq!(code, "42501", "{sql}: {refused}");
    }
}

#[tokio::test]
async fn rights_are_not_granted_to_the_owner_and_not_in_sqlite() {
    let face = Face::postgres().await;
    let refused = grant(&face.url, "postgres").await.unwrap_err();
    assert!(matches!(&refused, Error::Unfit(why) if why.contains("for another role")), "{refused}");
    let refused = grant(&face.url, "nobody knows it").await.unwrap_err();
    assert!(matches!(refused, Error::Unfit(_)), "{refused}");
    assert!(grant("sqlite:///runs.db", "app").await.is_err());
}
