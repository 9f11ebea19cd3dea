//! Rows as structs, and the reads of a run: written once, over the rows of both databases.

mod attempt_row;
mod boundary_facts;
mod boundary_row;
mod call_row;
mod columns;
mod deadlines;
mod live_boundary;
mod message_row;
mod outbox;
mod record;
mod run_limits;
mod run_row;
mod table;
mod wait_row;

pub(crate) use attempt_row::AttemptRow;
pub(crate) use boundary_facts::{
    BOUNDARY_FACTS, BoundaryFactsRow, LED_BY, PAST_CALLS_SQL, PastCallRow, led_by,
};
pub(crate) use boundary_row::{boundary_id, encoded_boundary, stored_batch, stored_record};
pub(crate) use call_row::{
    CallRow, decode_payload, encode_payload, has_other_arguments, key_refused_message, not_granted_message,
    other_arguments_message,
};
pub(crate) use columns::{Assignment, BoundaryColumn, Column, Columns, EnumText, Hash, Prefixed, Value};
pub(crate) use deadlines::{
    ClockSql, GATEWAYS_KEPT_MS, MAX_OUTAGES, OUTAGES_KEPT_MS, SERVING_GATEWAY_MS, expired_deadline,
};
pub(crate) use live_boundary::{LIVE_BOUNDARIES, LiveBoundary};
pub(crate) use message_row::{MessageRef, MessageRow, TakenSince};
pub(crate) use outbox::{due_notifications, due_notifications_sql};
pub(crate) use record::{FoundRuns, RunRows, StoreRow, record_sql};
pub(crate) use run_row::{HeadPoint, RunRow};
pub(crate) use wait_row::{OpenWaitsSql, StoredWait, WaitRow, proposal, stored_wait};
