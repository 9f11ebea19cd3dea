//! Statements that are the same on both databases.

/// Answers [`crate::Operator::capacity`], on both databases.
pub(crate) const CAPACITY: &str = "WITH sums AS ( \
         SELECT namespace, CAST(sum(stored_bytes) AS bigint) AS bytes FROM runs GROUP BY namespace \
     ), ranked AS ( \
         SELECT namespace, bytes, row_number() OVER (ORDER BY bytes DESC, namespace) AS place FROM sums \
     ), told AS ( \
         SELECT CASE WHEN place <= $1 THEN namespace END AS namespace, bytes FROM ranked \
     ) \
     SELECT namespace, CAST(sum(bytes) AS bigint) AS bytes FROM told GROUP BY namespace ORDER BY namespace";

/// The position at which the events of a turn begin: of its first boundary on the live branch, whether it has any or not.
pub(crate) const FIRST: &str = "SELECT position - event_count + 1 AS first FROM boundaries \
     WHERE run = $1 AND turn = $2 AND NOT undone ORDER BY boundary LIMIT 1";

/// How many payloads of the run `$1` stand there without the mark `$2` of those that are sealed.
pub(crate) const UNSEALED: &str = "SELECT \
     (SELECT count(*) FROM boundaries WHERE run = $1 AND (substr(ops, 1, 1) < $2 OR substr(events, 1, 1) < $2)) \
     + (SELECT count(*) FROM calls WHERE run = $1 AND (substr(arguments, 1, 1) < $2 OR substr(result, 1, 1) < $2)) \
     + (SELECT count(*) FROM records WHERE run = $1 AND substr(value, 1, 1) < $2) \
     + (SELECT count(*) FROM snapshots WHERE run = $1 AND substr(document, 1, 1) < $2)";
