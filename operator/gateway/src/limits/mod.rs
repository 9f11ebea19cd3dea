//! Limits on what one caller, and all callers together, may hold at once, and for how long.

pub(crate) mod busy_body;
pub(crate) mod connections;
pub(crate) mod refused_connection;
pub(crate) mod request_body;
pub(crate) mod response_body;
pub(crate) mod shared_limit;
pub(crate) mod state_reads;
pub(crate) mod write_timeout;
