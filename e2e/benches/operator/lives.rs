//! How often the operator writes to the API server in a run's life and in a recovery, according to the audit log of a
//! real cluster. Status writes that change only the progress are counted apart, because their number depends on the
//! time.

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
/// The wait after a run's end for the operator's last writes.
const LAST_WRITES: Duration = Duration::from_secs(4);

/// What the operator wrote in one life.
struct Life {
    writes: Vec<Entry>,
    /// How many status writes changed only the progress.
    progress_writes: usize,
}

/// Prints how many writes a life took, without a recovery and with one.
pub async fn measure() -> Result {
    let ctx = TestContext::new("bench-lives").await?;
    let (mut undisturbed, mut evicted) = (Vec::new(), Vec::new());
    for i in 0..LIVES {
        undisturbed.push(measure_life(&ctx, &format!("undisturbed-{i}"), false).await?);
        evicted.push(measure_life(&ctx, &format!("evicted-{i}"), true).await?);
    }
    ctx.end().await?;
    let rows = [("a life", &undisturbed), ("a life with one eviction", &evicted)].map(|(what, lives)| {
        let others = spread(lives, |life| life.writes.len() - life.progress_writes);
        let progress = spread(lives, |life| life.progress_writes);
        [what.to_owned(), others, progress, kinds(&lives[LIVES / 2].writes)]
    });
    print_table(
        &format!("API writes of the operator, {LIVES} lives each: least / median / most"),
        ["what", "without progress writes", "progress writes", "all writes of one life"],
        &rows,
    );
    Ok(())
}

fn spread(lives: &[Life], count: impl Fn(&Life) -> usize) -> String {
    let mut counts: Vec<usize> = lives.iter().map(count).collect();
    counts.sort_unstable();
    [0, LIVES / 2, LIVES - 1].map(|rank| counts[rank].to_string()).join(" / ")
}

/// Runs one life of twelve short turns.
async fn measure_life(ctx: &TestContext, name: &str, evict: bool) -> Result<Life> {
    let statuses = Arc::new(Mutex::new(Vec::new()));
    let watch = tokio::spawn(collect_statuses(ctx.api(), name.to_owned(), statuses.clone()));
    // The worker exits on SIGTERM. If it continued, it would finish the run before it is killed.
    let agent = Agent::new(json!({ "turns": 12, "turnSeconds": 0.2, "onTerm": "exit143" }));
    let run = ctx.start(name, &agent).await?;
    if evict {
        run.wait_for_turn(5).await?;
        run.evict().await?;
    }
    run.wait_for_success().await?;
    sleep(LAST_WRITES).await;
    watch.abort();
    let mut statuses = std::mem::take(&mut *statuses.lock().unwrap());
    // A change of the object that is not one of its status repeats the status.
    statuses.dedup();
    let statuses: Vec<_> = statuses.into_iter().map(without_progress).collect();
    let progress_writes = statuses.windows(2).filter(|pair| pair[0] == pair[1]).count();
    Ok(Life { writes: ctx.audit.operator_writes(name)?, progress_writes })
}

/// Collects every status of this run that the watch reports.
async fn collect_statuses(
    runs: kube::Api<AgentRun>,
    name: String,
    statuses: Arc<Mutex<Vec<AgentRunStatus>>>,
) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(runs, config).boxed();
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(run) | Event::InitApply(run)) = event {
            statuses.lock().unwrap().extend(run.status);
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
