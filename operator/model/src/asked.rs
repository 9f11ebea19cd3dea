//! Who asked for something, and why.

/// What is known of who asked for a transition that the operator carries out, and why: it stands in the detail of the
/// audit's row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedBy {
    /// What the client called itself that wrote the wish: its field manager.
    pub manager: Option<String>,
    /// The reason that they wrote beside it.
    pub reason: Option<String>,
}

impl AskedBy {
    /// A row's detail, with what is known.
    pub fn in_detail(self, mut detail: serde_json::Value) -> serde_json::Value {
        for (name, known) in [("manager", self.manager), ("reason", self.reason)] {
            if let Some(known) = known {
                detail[name] = known.into();
            }
        }
        detail
    }
}
