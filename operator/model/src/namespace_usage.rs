//! Stored bytes of each namespace.

/// What the store holds for the runs of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Name of the namespace; `None` for the sum of all namespaces that are not listed by name.
    pub namespace: Option<String>,
    /// Stored bytes of the operations and events of all boundaries. Snapshots (which are derived), calls and records
    /// are not included.
    pub bytes: i64,
}
