//! Parking: `POST park`. A parked run holds no pod.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `POST park`: ends the attempt. The run goes on in a later attempt, at the next turn.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParkRequest {
    /// Made once; a retry sends the same one.
    pub park_id: Uuid,
}

/// The answer to `POST park`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkResponse {
    /// Whether the attempt is over.
    pub result: ParkResult,
}

/// Whether an attempt is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParkResult {
    /// It is: exit.
    Parked,
    /// There is nothing to wait for: go on.
    Ready,
}
