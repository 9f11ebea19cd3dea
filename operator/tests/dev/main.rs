//! `dalsegno dev` with real processes and a real store. Every test also proves that no process is left behind: the agent's
//! helper holds the output open, and the output must end.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod client;
mod commands;
mod examples;
mod inputs;
mod ledger;
mod processes;
mod runs;
mod test_context;
mod waits;
