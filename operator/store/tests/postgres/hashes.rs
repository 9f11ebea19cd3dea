//! SQL and Rust compute the same hashes.

use dalsegno_format::audit::AuditHeader;
use dalsegno_format::header::{Header, NO_PARENT};
use dalsegno_protocol::{Boundary, Usage};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

const CASES: usize = 200;

#[tokio::test]
async fn a_boundarys_hash_is_the_same_in_sql_and_in_rust() {
    let mut conn = PgConnection::connect(&crate::pg::database().await).await.unwrap();
    let mut runner = TestRunner::deterministic();
    for _ in 0..CASES {
        let (header, trigger) = header().new_tree(&mut runner).unwrap().current();
        let header = Header { trigger: trigger.as_deref(), ..header };
        let in_sql: Vec<u8> = sqlx::query_scalar(
            "SELECT ds_content_hash_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
        )
        .bind(header.parent_hash.as_slice())
        .bind(header.run)
        .bind(header.turn)
        .bind(match header.boundary {
            Boundary::Plan => 1_i16,
            Boundary::Result => 2,
        })
        .bind(header.epoch)
        .bind(header.attempt)
        .bind(header.at)
        .bind(header.position)
        .bind(header.commit_id)
        .bind(header.digest.as_slice())
        .bind(header.ops_digest.map(Vec::from))
        .bind(header.full)
        .bind(header.events_digest.map(Vec::from))
        .bind(header.usage.tokens_in)
        .bind(header.usage.tokens_out)
        .bind(header.usage.tool_calls)
        .bind(header.usage.cost_micro_usd)
        .bind(header.trigger)
        .bind(header.records_digest.map(Vec::from))
        .fetch_one(&mut conn)
        .await
        .unwrap();
        assert_eq!(in_sql, header.content_hash(), "{header:?}");
    }
}

#[tokio::test]
async fn an_audit_rows_hash_is_the_same_in_sql_and_in_rust() {
    let mut conn = PgConnection::connect(&crate::pg::database().await).await.unwrap();
    let mut runner = TestRunner::deterministic();
    let rows = (any::<[u8; 32]>(), any::<u128>(), any::<i64>(), any::<i64>(), text(), text(), text());
    for _ in 0..CASES {
        let (parent_hash, run, seq, at, kind, actor, detail) = rows.new_tree(&mut runner).unwrap().current();
        let link = AuditHeader {
            parent_hash: &parent_hash,
            run: Uuid::from_u128(run),
            seq,
            at,
            kind: &kind,
            actor: &actor,
            detail: &detail,
        };
        let in_sql: Vec<u8> = sqlx::query_scalar("SELECT ds_audit_hash_v1($1, $2, $3, $4, $5, $6, $7)")
            .bind(link.parent_hash.as_slice())
            .bind(link.run)
            .bind(link.seq)
            .bind(link.at)
            .bind(link.kind)
            .bind(link.actor)
            .bind(link.detail)
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(in_sql, link.hash(), "{link:?}");
    }
}

/// Any text that PostgreSQL can store.
fn text() -> impl Strategy<Value = String> {
    any::<String>().prop_map(|text| text.replace('\0', ""))
}

fn header() -> impl Strategy<Value = (Header<'static>, Option<String>)> {
    let boundary_id = (any::<u128>(), any::<i32>(), any::<bool>(), any::<i64>(), any::<i32>());
    let body = (
        any::<u128>(),
        any::<[u8; 32]>(),
        any::<Option<[u8; 32]>>(),
        any::<bool>(),
        any::<Option<[u8; 32]>>(),
        any::<Option<[u8; 32]>>(),
    );
    let parent = prop_oneof![Just(NO_PARENT), any::<[u8; 32]>()];
    let trigger = prop_oneof![Just(None), text().prop_map(Some)];
    (boundary_id, body, parent, any::<[i64; 6]>(), trigger).prop_map(
        |(boundary_id, body, parent_hash, numbers, trigger)| {
            let (run, turn, is_plan, epoch, attempt) = boundary_id;
            let (commit_id, digest, ops_digest, full, events_digest, records_digest) = body;
            let [at, position, tokens_in, tokens_out, tool_calls, cost_micro_usd] = numbers;
            let header = Header {
                parent_hash,
                run: Uuid::from_u128(run),
                turn,
                boundary: if is_plan { Boundary::Plan } else { Boundary::Result },
                epoch,
                attempt,
                at,
                position,
                commit_id: Uuid::from_u128(commit_id),
                digest,
                ops_digest,
                full,
                events_digest,
                usage: Usage { tokens_in, tokens_out, tool_calls, cost_micro_usd },
                trigger: None,
                records_digest,
                forked_from: None,
            };
            (header, trigger)
        },
    )
}
