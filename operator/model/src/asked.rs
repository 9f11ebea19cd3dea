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
