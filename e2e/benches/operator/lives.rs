//! How often the operator writes to the API server in a run's life, and in a recovery: on a real cluster, by its audit
//! log.

use std::collections::BTreeMap;
use std::time::Duration;

use dalsegno_e2e::audit::Entry;
use dalsegno_e2e::{Agent, Result, World};
use serde_json::json;
use tokio::time::sleep;

use crate::figures::print_table;

/// Lives of each kind.
const LIVES: usize = 10;
/// After the end of a run: what the operator still writes of it.
const AFTERMATH: Duration = Duration::from_secs(4);

/// Prints how many writes a life took, without a recovery and with one.
pub async fn measure() -> Result {
    let world = World::new("bench-lives").await?;
    let (mut calm, mut evicted) = (Vec::new(), Vec::new());
    for i in 0..LIVES {
        calm.push(live(&world, &format!("calm-{i}"), false).await?);
        evicted.push(live(&world, &format!("evicted-{i}"), true).await?);
    }
    world.end().await?;
    let rows = [("a life", &calm), ("a life with one eviction", &evicted)].map(|(what, lives)| {
        let mut counts: Vec<usize> = lives.iter().map(Vec::len).collect();
        counts.sort_unstable();
        let [least, median, most] = [0, LIVES / 2, LIVES - 1].map(|rank| counts[rank]);
        [what.to_owned(), format!("{least} / {median} / {most}"), kinds(&lives[LIVES / 2])]
    });
    print_table(
        &format!("API writes of the operator, {LIVES} lives each, the mirror of progress included"),
        ["what", "least / median / most", "one of them"],
        &rows,
    );
    Ok(())
}

/// One life of twelve short turns; the operator's writes.
async fn live(world: &World, name: &str, evict: bool) -> Result<Vec<Entry>> {
    // It exits when it is told to: one that went on would be done before it is killed.
    let agent = Agent::new(json!({ "turns": 12, "turnSeconds": 0.2, "onTerm": "exit143" }));
    let run = world.start(name, &agent).await?;
    if evict {
        run.passes_turn(5).await?;
        run.evict().await?;
    }
    run.succeeds().await?;
    sleep(AFTERMATH).await;
    world.audit.operator_writes(name)
}

fn kinds(entries: &[Entry]) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for entry in entries {
        let resource = [entry.resource.as_str(), entry.subresource.as_str()].join("/");
        *counts.entry(format!("{} {}", entry.verb, resource.trim_end_matches('/'))).or_default() += 1;
    }
    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}
