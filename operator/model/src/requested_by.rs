//! Who requested a transition, and why.

/// Who requested a transition that the operator carries out, and why, as far as it is known. It is stored in the
/// detail of the audit row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedBy {
    /// The field manager of the client that wrote the request.
    pub manager: Option<String>,
    /// The reason that was written with the request.
    pub reason: Option<String>,
}

impl AskedBy {
    /// Adds what is known to the detail of an audit row.
    pub fn in_detail(self, mut detail: serde_json::Value) -> serde_json::Value {
        for (name, known) in [("manager", self.manager), ("reason", self.reason)] {
            if let Some(known) = known {
                detail[name] = known.into();
            }
        }
        detail
    }
}
