//! Parking: `POST park`. A parked run holds no pod.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Limits, bounded};

/// `POST park`: ends the attempt. The run goes on in a later attempt, at the next turn. Also the outcome of a boundary
/// that parks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParkRequest {
    /// Made once; a retry sends the same one.
    pub park_id: Uuid,
    /// Ids of the waits that the run waits for. Empty: it waits for the end of a suspend.
    #[serde(
        default,
        deserialize_with = "bounded::list::<{ Limits::WAITS }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub on: Vec<String>,
    /// Whether all of them must be answered, or any of them.
    #[serde(default, skip_serializing_if = "ParkMode::is_all")]
    pub mode: ParkMode,
}

/// How many of its waits must be answered before a parked run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParkMode {
    /// All of them.
    #[default]
    All,
    /// One of them.
    Any,
}

impl ParkMode {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
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
