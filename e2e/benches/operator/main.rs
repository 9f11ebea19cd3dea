//! What the operator costs and how fast it is: its reaction to a disruption, its writes to the API server and to the
//! store, its memory.
//!
//! All but `lives` use a control plane of their own with fake nodes (`with-control-plane.sh`). The operator is
//! `DALSEGNO_PROGRAM`, and this program plays the workers. `lives` uses a real cluster and the operator installed there.

#![allow(clippy::unwrap_used, reason = "a bench may fail")]

mod bare;
mod bystanders;
mod fleet;
mod lives;
mod memory;
mod parked;
mod program;
mod quiet;
mod ramp;
mod reaction;
mod scale;
mod storms;

#[path = "../../../operator/gateway/benches/figures.rs"]
mod figures;
#[path = "../../../operator/gateway/benches/floor.rs"]
#[allow(dead_code, reason = "another bench uses the rest")]
mod floor;
#[path = "../../../operator/store/tests/support/pg.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod pg;

use dalsegno_e2e::Result;

/// What can be measured.
const NAMES: &str = "reaction, quiet, memory, scale, parked, ramp, lives";

#[tokio::main]
async fn main() -> Result {
    let names: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    for name in &names {
        match name.as_str() {
            "reaction" => reaction::measure().await?,
            "quiet" => quiet::measure().await?,
            "memory" => memory::measure().await?,
            "scale" => scale::measure().await?,
            "parked" => parked::measure().await?,
            "ramp" => ramp::measure().await?,
            "lives" => lives::measure().await?,
            other => anyhow::bail!("there is no bench {other:?}: {NAMES}"),
        }
    }
    anyhow::ensure!(!names.is_empty(), "name the benches to run: {NAMES}");
    Ok(())
}
