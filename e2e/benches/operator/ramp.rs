//! Fifty parked runs that wait for the rate limit of one provider. At its reset one run tries first, and in each later
//! step of five seconds twice as many. If the first one is limited again, one statement moves all others.

use std::collections::BTreeMap;
use std::time::Duration;

use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{AuditLog, Result, Worker};
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::bystanders::{creations, creations_so_far};
use crate::figures::print_table;
use crate::fleet::Fleet;
use crate::parked::{Park, attach_after, finish, no_pods, park, sleep_until};
use crate::program::{Program, Role, free_port};
use crate::quiet::{StatementLog, database_for_each, start_logging_server};

/// The number of runs.
const RUNS: usize = 50;
/// From one step of the ramp to the next.
const STEP: Duration = secs(5);
/// The runs of a step are spread over this time.
const JITTER: SignedDuration = SignedDuration::from_secs(1);
/// The steps of fifty runs: 1, 2, 4, 8, 16, 32.
const STEPS: usize = 6;
/// The time for the runs to park and for their pods to be deleted.
const SETTLE: Duration = secs(75);
/// How much later the provider accepts calls again than it said at first.
const LATER: Duration = secs(30);
/// The limit for the pods after the last step.
const LIMIT: Duration = secs(120);
/// The statement that moves the waits of other runs.
const MOVE: &str = "SET wake_at = waits.wake_at +";

/// Prints when the runs go on, and fails if one goes on too early, twice or never.
pub async fn measure() -> Result {
    let server = tokio::task::spawn_blocking(start_logging_server).await?;
    let [operator, gateway] = database_for_each(&server).await?;
    let port = free_port()?;
    let role = |command, database| Role { command, user: command, database, gateway: port };
    let _programs = (
        Program::start(&role("gateway", &gateway)).await?,
        Program::start(&role("operator", &operator)).await?,
    );
    let mut fleet = Fleet::new("ramp").await?;
    let audit = AuditLog::from_now(&fleet.namespace)?;
    fleet.start((0..RUNS).map(|i| format!("limited-{i}"))).await?;

    let first = limited(&fleet, Limited { turn: 1, id: "limit-1", provider: "one" }).await?;
    let pods = pods_of(&audit, 2, RUNS).await?;
    first.print("the provider accepts calls again", &pods);
    first.check(&pods)?;
    fleet.workers = next_workers(&fleet, pods.keys(), "limit-1").await?;

    let log = StatementLog::from_now(&gateway)?;
    let mut again = limited(&fleet, Limited { turn: 2, id: "limit-2", provider: "two" }).await?;
    let (probe, worker) = again.probe(&fleet, &audit).await?;
    let reset = again.reset + LATER;
    let wait = json!({ "kind": "rateLimit", "provider": "two", "resetTime": reset.to_string() });
    let parked = park(&[worker], Park { turn: 3, id: "limit-3", wait }).await?;
    anyhow::ensure!(Timestamp::now() < again.reset + STEP, "the first run was not limited again in time");
    let (_, writes) = log.statements("gateway")?;
    let moves = writes.iter().filter(|statement| statement.contains(MOVE)).count();
    anyhow::ensure!(moves == 1, "{moves} statements moved the waits of the others");
    again.move_to(reset, &parked)?;

    let last = pods_of(&audit, 4, 1).await?;
    let mut pods = pods_of(&audit, 3, RUNS).await?;
    pods.remove(&probe);
    pods.extend(last);
    again.print("the first run is limited again for 30 s, and one statement moves the others", &pods);
    again.check(&pods)?;
    finish_all(&fleet, &pods).await?;
    anyhow::ensure!(creations_so_far(&audit)?.len() == 3 * RUNS + 1, "a run went on more than once");
    fleet.end().await
}

/// What the workers of all runs do.
struct Limited {
    turn: u32,
    id: &'static str,
    provider: &'static str,
}

/// The reset of a rate limit, and when each wait ends by the store's clock.
struct Ramp {
    reset: Timestamp,
    ends: Vec<Timestamp>,
}

/// Each worker is limited and parks. Returns when each run goes on.
async fn limited(fleet: &Fleet, limited: Limited) -> Result<Ramp> {
    let Limited { turn, id, provider } = limited;
    // Whole seconds, as a provider says them.
    let reset = Timestamp::from_second((Timestamp::now() + SETTLE).as_second())?;
    let wait = json!({ "kind": "rateLimit", "provider": provider, "resetTime": reset.to_string() });
    let opened = park(&fleet.workers, Park { turn, id, wait }).await?;
    no_pods(fleet, 0, SETTLE).await?;
    anyhow::ensure!(Timestamp::now() < reset, "the runs did not park in time");
    Ok(Ramp { reset, ends: opened.iter().map(wake_time).collect::<Result<_>>()? })
}

fn wake_time(opened: &Value) -> Result<Timestamp> {
    Ok(opened["wakeTime"].as_str().unwrap_or_default().parse()?)
}

impl Ramp {
    /// The run that tries first, as the name of its pod, and its next worker. No other run goes on before the next step.
    async fn probe(&self, fleet: &Fleet, audit: &AuditLog) -> Result<(String, Worker)> {
        sleep_until(self.reset).await;
        let pods = pods_of(audit, 3, 1).await?;
        let names: Vec<_> = pods.keys().cloned().collect();
        let [name] = &names[..] else { anyhow::bail!("{names:?} went on at once") };
        let worker = fleet.worker(name).await?;
        attach_after(&worker, "limit-2").await?;
        Ok((name.clone(), worker))
    }

    /// The waits after the first one end later by as much as the reset, and the first run has a new wait.
    fn move_to(&mut self, reset: Timestamp, parked: &[Value]) -> Result {
        let moved = reset.duration_since(self.reset);
        self.ends.sort_unstable();
        self.ends.remove(0);
        self.ends.iter_mut().for_each(|end| *end += moved);
        self.ends.extend(parked.iter().map(wake_time).collect::<Result<Vec<_>>>()?);
        self.reset = reset;
        Ok(())
    }

    /// The number of these times in each step after the reset.
    fn steps<'a>(&self, times: impl Iterator<Item = &'a Timestamp>) -> Vec<usize> {
        let mut steps = vec![0; STEPS];
        for time in times {
            let after = Duration::try_from(time.duration_since(self.reset)).unwrap_or_default();
            let step = (after.as_secs() / STEP.as_secs()) as usize;
            steps.resize(steps.len().max(step + 1), 0);
            steps[step] += 1;
        }
        steps
    }

    /// Prints how many runs go on in each step.
    fn print(&self, what: &str, pods: &BTreeMap<String, Timestamp>) {
        let (ends, created) = (self.steps(self.ends.iter()), self.steps(pods.values()));
        let rows: Vec<_> = (0..ends.len().max(created.len()))
            .map(|step| {
                let [ends, created] = [&ends, &created].map(|all| all.get(step).copied().unwrap_or_default());
                let from = step as u64 * STEP.as_secs();
                [
                    format!("{from} to {} s", from + STEP.as_secs()),
                    (1_usize << step).to_string(),
                    ends.to_string(),
                    format!("{created} {}", "#".repeat(created)),
                ]
            })
            .collect();
        let title = format!("{RUNS} runs wait for the rate limit of one provider; {what}");
        print_table(&title, ["after the reset", "allowed", "waits that end", "next pods"], &rows);
    }

    /// In each step as many waits end as it allows, at its beginning. No run goes on before its step, and the pods up to
    /// each step are at most as many as all steps up to it allow: a late pod may come in a later step.
    fn check(&self, pods: &BTreeMap<String, Timestamp>) -> Result {
        anyhow::ensure!(pods.len() == RUNS && self.ends.len() == RUNS, "{} runs went on", pods.len());
        let early = pods.values().chain(&self.ends).filter(|time| **time < self.reset).count();
        anyhow::ensure!(early == 0, "{early} runs went on before the reset");
        for end in &self.ends {
            let after = end.duration_since(self.reset).as_millis() % STEP.as_millis() as i128;
            anyhow::ensure!(
                after < JITTER.as_millis(),
                "a wait ends {after} ms after the beginning of its step"
            );
        }
        let mut so_far = 0;
        for (step, created) in self.steps(pods.values()).into_iter().enumerate() {
            so_far += created;
            let allowed = (2 << step) - 1;
            anyhow::ensure!(
                so_far <= allowed,
                "{so_far} runs went on up to step {step}, which allows {allowed}"
            );
        }
        for (step, ends) in self.steps(self.ends.iter()).into_iter().enumerate() {
            anyhow::ensure!(ends <= 1 << step, "{ends} waits end in step {step}");
        }
        Ok(())
    }
}

/// Waits until this number of runs have a pod of this attempt. Returns when each was created.
async fn pods_of(audit: &AuditLog, attempt: usize, count: usize) -> Result<BTreeMap<String, Timestamp>> {
    // Every run has had each earlier attempt, and only the first run of all has a fourth one.
    creations(audit, (attempt - 1) * RUNS + count, LIMIT).await?;
    let mut pods = creations_so_far(audit)?;
    pods.retain(|pod, _| pod.ends_with(&format!("-{attempt}")));
    Ok(pods)
}

/// The next workers attach, after their waits.
async fn next_workers(
    fleet: &Fleet,
    pods: impl Iterator<Item = &String>,
    after: &str,
) -> Result<Vec<Worker>> {
    try_join_all(pods.map(|pod| async move {
        let worker = fleet.worker(pod).await?;
        attach_after(&worker, after).await?;
        Ok(worker)
    }))
    .await
}

/// The last worker of each run commits the last turn.
async fn finish_all(fleet: &Fleet, pods: &BTreeMap<String, Timestamp>) -> Result {
    let ends = pods.keys().map(|pod| async move {
        let is_limited_twice = pod.ends_with("-4");
        let worker = fleet.worker(pod).await?;
        attach_after(&worker, if is_limited_twice { "limit-3" } else { "limit-2" }).await?;
        finish(&worker, if is_limited_twice { 4 } else { 3 }).await
    });
    try_join_all(ends).await.map(drop)
}
