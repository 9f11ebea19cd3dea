//! How often the operator writes to the API server in a run's life, and in a recovery: on a real cluster, by its audit
//! log. Statuses that tell of progress alone are counted apart: how many there are is a matter of time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_crds::{AgentRun, AgentRunStatus};
use dalsegno_e2e::audit::Entry;
use dalsegno_e2e::{Agent, Result, TestContext};
use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;
use tokio::time::sleep;

use crate::figures::print_table;

/// Lives of each kind.
const LIVES: usize = 10;
/// After the end of a run: what the operator still writes of it.
const AFTERMATH: Duration = Duration::from_secs(4);

/// What the operator wrote in one life.
struct Life {
    writes: Vec<Entry>,
    /// Statuses that told of progress alone.
    mirrors: usize,
}

/// Prints how many writes a life took, without a recovery and with one.
pub async fn measure() -> Result {
    let ctx = TestContext::new("bench-lives").await?;
    let (mut calm, mut evicted) = (Vec::new(), Vec::new());
    for i in 0..LIVES {
        calm.push(live(&ctx, &format!("calm-{i}"), false).await?);
        evicted.push(live(&ctx, &format!("evicted-{i}"), true).await?);
    }
    ctx.end().await?;
    let rows = [("a life", &calm), ("a life with one eviction", &evicted)].map(|(what, lives)| {
        let apart = spread(lives, |life| life.writes.len() - life.mirrors);
        [what.to_owned(), apart, spread(lives, |life| life.mirrors), kinds(&lives[LIVES / 2].writes)]
    });
    print_table(
        &format!("API writes of the operator, {LIVES} lives each: least / median / most"),
        ["what", "but the mirror of progress", "the mirror", "all of one life"],
        &rows,
    );
    Ok(())
}

fn spread(lives: &[Life], count: impl Fn(&Life) -> usize) -> String {
    let mut counts: Vec<usize> = lives.iter().map(count).collect();
    counts.sort_unstable();
    [0, LIVES / 2, LIVES - 1].map(|rank| counts[rank].to_string()).join(" / ")
}

/// One life of twelve short turns.
async fn live(ctx: &TestContext, name: &str, evict: bool) -> Result<Life> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let watch = tokio::spawn(listen(ctx.api(), name.to_owned(), told.clone()));
    // It exits when it is told to: one that went on would be done before it is killed.
    let agent = Agent::new(json!({ "turns": 12, "turnSeconds": 0.2, "onTerm": "exit143" }));
    let run = ctx.start(name, &agent).await?;
    if evict {
        run.wait_for_turn(5).await?;
        run.evict().await?;
    }
    run.wait_for_success().await?;
    sleep(AFTERMATH).await;
    watch.abort();
    let mut told = std::mem::take(&mut *told.lock().unwrap());
    // What else changes of the object is told with the status that stands.
    told.dedup();
    let told: Vec<_> = told.into_iter().map(without_progress).collect();
    let mirrors = told.windows(2).filter(|two| two[0] == two[1]).count();
    Ok(Life { writes: ctx.audit.operator_writes(name)?, mirrors })
}

/// Keeps each status that is told of this run.
async fn listen(runs: kube::Api<AgentRun>, name: String, told: Arc<Mutex<Vec<AgentRunStatus>>>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(runs, config).boxed();
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(run) | Event::InitApply(run)) = event {
            told.lock().unwrap().extend(run.status);
        }
    }
}

fn without_progress(mut status: AgentRunStatus) -> AgentRunStatus {
    (status.checkpoint, status.usage) = (None, None);
    status.conditions.retain(|condition| condition.type_ != "CheckpointAvailable");
    status
}

fn kinds(entries: &[Entry]) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for entry in entries {
        let resource = [entry.resource.as_str(), entry.subresource.as_str()].join("/");
        *counts.entry(format!("{} {}", entry.verb, resource.trim_end_matches('/'))).or_default() += 1;
    }
    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}
