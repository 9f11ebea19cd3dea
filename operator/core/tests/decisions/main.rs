//! The decision, as one big table in words, and what is true of every decision.
//!
//! A row is a sentence, a situation and what is expected of it. To add one, find its theme.

#![allow(clippy::unwrap_used, reason = "a situation that cannot be built is a defect of its row")]

mod fixtures;
mod properties;
mod table;
