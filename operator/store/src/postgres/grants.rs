//! What the role that operator and gateway connect as may do, where it does not own the tables.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::fault::{Fault, Work};

/// Everything that is migrated and has rows. Others may keep tables beside these.
const TABLES: &str = "_sqlx_migrations, anchored, anchors, approvals, attempts, audit, boundaries, calls, chunks, data_keys, \
     held_records, record_batches, records, revisions, runs, signing_key, snapshots, store";

/// The rights, `{role}`, `{schema}` and `{tables}` to be filled in. What only ever grows is added to and read; only what can be
/// rebuilt or belongs to workers is deleted. Of those who grant at the same time one waits for the other.
const RIGHTS: &str = "\
    SELECT pg_advisory_xact_lock(hashtextextended('dalsegno/rights', 0));
    GRANT USAGE ON SCHEMA {schema} TO {role};
    REVOKE ALL ON {tables} FROM {role};
    GRANT SELECT, INSERT, UPDATE ON {tables} TO {role};
    GRANT DELETE ON snapshots, chunks, records, record_batches TO {role};
    REVOKE UPDATE ON audit, anchors, signing_key FROM {role};
    REVOKE INSERT, UPDATE ON _sqlx_migrations, held_records FROM {role};
    REVOKE INSERT ON store FROM {role};";

/// Gives a role the least rights that the work needs, and takes all others from it.
pub(super) async fn grant(conn: &mut PgConnection, role: &str) -> Work<()> {
    let (me, role_name, schema): (String, String, String) =
        sqlx::query_as("SELECT current_user::text, quote_ident($1), quote_ident(current_schema())")
            .bind(role)
            .fetch_one(&mut *conn)
            .await?;
    if me == role {
        return Err(Fault::Unfit(format!(
            "the role {role} migrates, and owns the tables: the rights are for another role, that operator and \
             gateway connect as"
        )));
    }
    let sql = RIGHTS.replace("{role}", &role_name).replace("{schema}", &schema).replace("{tables}", TABLES);
    // Several statements in one simple query are one transaction.
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(conn)
        .await
        .map_err(|error| Fault::Unfit(format!("cannot grant the role {role} its rights: {error}")))?;
    Ok(())
}
