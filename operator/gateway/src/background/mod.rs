//! Tasks that run in the background, independent of the calls of workers.

pub(crate) mod gateway_heartbeat;
pub(crate) mod heartbeat_batcher;
pub(crate) mod snapshot_schedule;
pub(crate) mod snapshot_writer;
pub(crate) mod wait_poller;
