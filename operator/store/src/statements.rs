//! Statements that both databases share.

/// For [`dalsegno_model::Operator::namespace_usage`]: bytes of the `$1` largest namespaces, and the sum of all others
/// under NULL. The argument says which runs are read.
macro_rules! namespace_usage {
    ($runs:literal) => {
        concat!(
            "WITH sums AS ( \
                 SELECT namespace, CAST(sum(stored_bytes) AS bigint) AS bytes FROM ",
            $runs,
            " GROUP BY namespace \
             ), ranked AS ( \
                 SELECT namespace, bytes, row_number() OVER (ORDER BY bytes DESC, namespace) AS boundary_id FROM sums \
             ), listed AS ( \
                 SELECT CASE WHEN boundary_id <= $1 THEN namespace END AS namespace, bytes FROM ranked \
             ) \
             SELECT namespace, CAST(sum(bytes) AS bigint) AS bytes FROM listed GROUP BY namespace ORDER BY namespace"
        )
    };
}
pub(crate) use namespace_usage;

/// The position of the first event of a turn: of the first boundary of the turn on the live branch, even if that
/// boundary carries no events.
pub(crate) const FIRST_POSITION: &str = "SELECT position - event_count + 1 AS first FROM boundaries \
     WHERE run = $1 AND turn = $2 AND NOT undone ORDER BY boundary LIMIT 1";

/// The number of plain payloads of the run `$1`. A sealed payload begins with the byte `$2` or a higher one.
pub(crate) const COUNT_UNSEALED: &str = "SELECT \
     (SELECT count(*) FROM boundaries WHERE run = $1 AND (substr(ops, 1, 1) < $2 OR substr(events, 1, 1) < $2)) \
     + (SELECT count(*) FROM calls WHERE run = $1 AND (substr(arguments, 1, 1) < $2 OR substr(result, 1, 1) < $2)) \
     + (SELECT count(*) FROM records WHERE run = $1 AND substr(value, 1, 1) < $2) \
     + (SELECT count(*) FROM snapshots WHERE run = $1 AND substr(document, 1, 1) < $2)";
