//! The rights of the role that operator and gateway connect as, if another role owns the tables.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::db_error::{DbError, DbResult};

/// All tables and views that the migrations create. The schema may contain tables of others.
const TABLES: &str = "\
    _sqlx_migrations, anchor_leaves, anchors, attempts, audit, boundaries, calls, chunks, data_keys, \
    gateway_outages, gateways, held_records, messages, outbox, purges, record_batches, record_changes, records, \
    revisions, runs, signing_key, snapshots, store, waits";

/// The statements, with placeholders `{role}`, `{schema}` and `{tables}`. Append-only tables get INSERT and SELECT
/// alone. DELETE is granted only on tables that can be rebuilt or belong to workers. The advisory lock serializes
/// concurrent grants.
const RIGHTS: &str = "\
    SELECT pg_advisory_xact_lock(hashtextextended('dalsegno/rights', 0));
    REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, {role};
    GRANT USAGE ON SCHEMA {schema} TO {role};
    REVOKE ALL ON {tables} FROM {role};
    GRANT SELECT, INSERT, UPDATE ON {tables} TO {role};
    GRANT DELETE ON snapshots, chunks, records, record_batches, record_changes, revisions, \
        gateway_outages, gateways, outbox TO {role};
    REVOKE UPDATE ON audit, anchors, anchor_leaves, signing_key FROM {role};
    REVOKE INSERT, UPDATE ON _sqlx_migrations, held_records, purges FROM {role};
    REVOKE INSERT ON store FROM {role};";

/// The quoted names of the role and the schema, and whether the role is the current one or may become it.
const NAMES: &str = "\
    SELECT quote_ident($1), quote_ident(current_schema()), EXISTS ( \
        SELECT FROM pg_roles \
        WHERE rolname = $1 AND (pg_has_role(oid, current_user, 'MEMBER') OR rolcreaterole))";

/// The role through which `$1` may create functions that the owner's statements would call: these name functions
/// without their schema, and a function with exactly matching argument types wins over one of the server.
const CREATOR: &str = "\
    SELECT rolname::text FROM pg_roles \
    WHERE pg_has_role($1, oid, 'MEMBER') \
      AND (has_schema_privilege(oid, current_schema(), 'CREATE') \
           OR has_database_privilege(oid, current_database(), 'CREATE')) \
    ORDER BY rolname <> $1 LIMIT 1";

/// Grants a role the least rights that operator and gateway need, and revokes all others.
pub(super) async fn grant(conn: &mut PgConnection, role: &str) -> DbResult<()> {
    let (name, schema, is_owner): (String, String, bool) =
        sqlx::query_as(NAMES).bind(role).fetch_one(&mut *conn).await?;
    if is_owner {
        return Err(DbError::Unusable(format!(
            "the role {role} owns the tables, or may act as their owner: the rights are for another role, which \
             operator and gateway connect as"
        )));
    }
    let mut transaction = conn.begin().await?;
    let sql = RIGHTS.replace("{role}", &name).replace("{schema}", &schema).replace("{tables}", TABLES);
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *transaction)
        .await
        .map_err(|error| DbError::Unusable(format!("cannot grant rights to the role {role}: {error}")))?;
    let creator: Option<String> =
        sqlx::query_scalar(CREATOR).bind(role).fetch_optional(&mut *transaction).await?;
    if let Some(creator) = creator {
        return Err(DbError::Unusable(format!(
            "the role {role} could falsify the audit: as {creator} it may create functions in the schema {schema}, or \
             schemas, that the owner's statements would call; the owner of the schema and the database must REVOKE \
             CREATE on both from PUBLIC and {creator}"
        )));
    }
    Ok(transaction.commit().await?)
}
