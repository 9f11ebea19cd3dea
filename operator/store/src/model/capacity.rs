//! How much is kept, and of whom.

/// What the store keeps of a namespace's runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name; `None`: all namespaces that hold less than those that are named.
    pub namespace: Option<String>,
    /// Bytes of the states and events that its boundaries brought, as they are kept. Snapshots, which are made of them,
    /// calls and records are not in it.
    pub bytes: i64,
}

/// Answers [`crate::Store::capacity`], on both databases.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const CAPACITY: &str = "WITH sums AS ( \
         SELECT namespace, CAST(sum(stored_bytes) AS bigint) AS bytes FROM runs GROUP BY namespace \
     ), ranked AS ( \
         SELECT namespace, bytes, row_number() OVER (ORDER BY bytes DESC, namespace) AS place FROM sums \
     ), told AS ( \
         SELECT CASE WHEN place <= $1 THEN namespace END AS namespace, bytes FROM ranked \
     ) \
     SELECT namespace, CAST(sum(bytes) AS bigint) AS bytes FROM told GROUP BY namespace ORDER BY namespace";
