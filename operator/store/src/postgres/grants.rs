//! What the role that operator and gateway connect as may do, where it does not own the tables.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::db_error::{DbError, DbResult};

/// Everything that is migrated and has rows. Others may keep tables beside these.
const TABLES: &str = "_sqlx_migrations, anchored, anchors, approvals, attempts, audit, boundaries, calls, chunks, data_keys, \
     held_records, record_batches, record_changes, records, revisions, runs, signing_key, snapshots, store";

/// The rights, `{role}`, `{schema}` and `{tables}` to be filled in. What only ever grows is added to and read; only what
/// can be rebuilt or belongs to workers is deleted. Of those who grant at the same time one waits for the other.
const RIGHTS: &str = "\
    SELECT pg_advisory_xact_lock(hashtextextended('dalsegno/rights', 0));
    REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, {role};
    GRANT USAGE ON SCHEMA {schema} TO {role};
    REVOKE ALL ON {tables} FROM {role};
    GRANT SELECT, INSERT, UPDATE ON {tables} TO {role};
    GRANT DELETE ON snapshots, chunks, records, record_batches, record_changes, revisions TO {role};
    REVOKE UPDATE ON audit, anchors, signing_key FROM {role};
    REVOKE INSERT, UPDATE ON _sqlx_migrations, held_records FROM {role};
    REVOKE INSERT ON store FROM {role};";

/// The role and the schema as they are quoted, and whether the role is the one that asks, or may make itself that.
const WHO: &str = "\
    SELECT quote_ident($1), quote_ident(current_schema()), EXISTS ( \
        SELECT FROM pg_roles \
        WHERE rolname = $1 AND (pg_has_role(oid, current_user, 'MEMBER') OR rolcreaterole))";

/// As whom the role may create what the owner's statements would find: they name functions without their schema, and one that
/// takes the very types comes before the server's own.
const MAKER: &str = "\
    SELECT rolname::text FROM pg_roles \
    WHERE pg_has_role($1, oid, 'MEMBER') \
      AND (has_schema_privilege(oid, current_schema(), 'CREATE') \
           OR has_database_privilege(oid, current_database(), 'CREATE')) \
    ORDER BY rolname <> $1 LIMIT 1";

/// Gives a role the least rights that the work needs, and takes all others from it.
pub(super) async fn grant(conn: &mut PgConnection, role: &str) -> DbResult<()> {
    let (name, schema, owns): (String, String, bool) =
        sqlx::query_as(WHO).bind(role).fetch_one(&mut *conn).await?;
    if owns {
        return Err(DbError::Unusable(format!(
            "the role {role} migrates, or may act as the one that does, and owns the tables: the rights are for another \
             role, that operator and gateway connect as"
        )));
    }
    let mut work = conn.begin().await?;
    let sql = RIGHTS.replace("{role}", &name).replace("{schema}", &schema).replace("{tables}", TABLES);
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *work)
        .await
        .map_err(|error| DbError::Unusable(format!("cannot grant the role {role} its rights: {error}")))?;
    let maker: Option<String> = sqlx::query_scalar(MAKER).bind(role).fetch_optional(&mut *work).await?;
    if let Some(maker) = maker {
        return Err(DbError::Unusable(format!(
            "the role {role} could bend the audit: as {maker} it may create functions in the schema {schema}, or schemas, that \
             its owner would run; whoever owns them must REVOKE CREATE ON SCHEMA {schema}, and on the database, from PUBLIC \
             and {maker}"
        )));
    }
    Ok(work.commit().await?)
}
