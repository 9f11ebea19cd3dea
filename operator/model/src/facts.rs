//! What the store knows of a run, for people: the answer to `GET facts`.

use serde::{Deserialize, Serialize};

use crate::RunRecord;

/// Everything that a decision takes from the store. It has no payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The run's row.
    pub run: RunRecord,
    /// Ids of the first calls that hold the run until a person settles them.
    pub calls_to_settle: Vec<String>,
}
