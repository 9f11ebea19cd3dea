//! Tests of the decision: tables of cases, and properties of every decision.
//!
//! A case is a sentence, the input of a decision, and what is expected of it. To add one, find the file of its topic.

#![allow(clippy::unwrap_used, reason = "a fixture that cannot be built is a defect of its case")]

mod fixtures;
mod properties;
mod table;
