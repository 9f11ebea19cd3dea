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
