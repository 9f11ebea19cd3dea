//! The handlers: one file for each call of the contract, or for a group of related calls.

pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod calls;
pub(crate) mod commit;
pub(crate) mod event_stream;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod facts;
pub(crate) mod finish;
pub(crate) mod heartbeat;
pub(crate) mod messages;
pub(crate) mod park;
pub(crate) mod proposal;
pub(crate) mod records;
pub(crate) mod state;
pub(crate) mod turns;
pub(crate) mod waits;
