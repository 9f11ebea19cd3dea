//! What the operator costs, and how fast it is: reaction to a disruption, writes to the API server and the store, memory.
//!
//! `reaction`, `quiet` and `memory` run before a control plane of their own, whose pods run on fake nodes
//! (`with-control-plane.sh`): the operator is `DALSEGNO_PROGRAM`, the workers are played here. `lives` counts on a real
//! cluster, with the operator that is installed there.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

mod bare;
mod fleet;
mod lives;
mod memory;
mod program;
mod quiet;
mod reaction;

#[path = "../../../operator/gateway/benches/figures.rs"]
mod figures;
#[path = "../../../operator/gateway/benches/floor.rs"]
#[allow(dead_code, reason = "its other user needs the rest")]
mod floor;
#[path = "../../../operator/store/tests/support/pg.rs"]
#[allow(dead_code, reason = "its other users need the rest")]
mod pg;

use dalsegno_e2e::Result;

#[tokio::main]
async fn main() -> Result {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for word in &words {
        match word.as_str() {
            "reaction" => reaction::measure().await?,
            "quiet" => quiet::measure().await?,
            "memory" => memory::measure().await?,
            "lives" => lives::measure().await?,
            other => anyhow::bail!("there is no bench {other:?}: reaction, quiet, memory, lives"),
        }
    }
    anyhow::ensure!(!words.is_empty(), "say what to measure: reaction, quiet, memory, lives");
    Ok(())
}
