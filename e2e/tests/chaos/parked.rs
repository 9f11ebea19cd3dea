//! The operator dies at every step on the way of a run through a wait. Also: parked runs, for tests of other outages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dalsegno_crds::{Cause, Summary};
use dalsegno_e2e::approval::APPROVER;
use dalsegno_e2e::objects::has_ended;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Agent, Result, Run, StatusExt, TestContext};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::operator_crash::CRASH_AT;

/// Turns of the runs. They wait after the first one.
const TURNS: i32 = 3;

/// The id that the agent gives to its only wait.
const WAIT: &str = "after-1-1";

/// The person who decides.
const PERSON: &str = "alice";

/// A run that waits for what the test says.
fn agent(mut wait: Value) -> Agent {
    wait["afterTurn"] = json!(1);
    Agent::new(json!({ "turns": TURNS, "turnSeconds": 0.1, "waits": [wait] }))
}

/// A run that waits for a person.
fn asking() -> Agent {
    agent(json!({ "kind": "approval", "title": "Go on?", "proposal": { "turn": 2 } }))
}

/// A run that waits for a time.
fn waiting(seconds: u32) -> Agent {
    agent(json!({ "kind": "until", "seconds": seconds }))
}

/// How long a run may take from the answer to its end.
const LIMIT: Duration = secs(120);

/// Checks that a run goes on once after its wait, within this time, and that nothing is counted.
async fn expect_went_on_once(run: &Run<'_>, outcome: &str, limit: Duration) -> Result {
    let status = run.wait_for(Summary::Succeeded, limit).await?;
    let counted = (status.recovery().recovery_attempts, status.recovery().disruptions);
    anyhow::ensure!(counted == (0, 0), "{}: {:?}", run.name, status.recovery());
    anyhow::ensure!(status.causes() == [Cause::Parked], "{}: {:?}", run.name, status.recovery());
    anyhow::ensure!(status.attempt().number == 2, "{}: {:?}", run.name, status.attempt());
    let notes: Vec<String> = run.notes().await?.into_iter().map(|note| note.note).collect();
    anyhow::ensure!(notes == [format!("answered {WAIT} {outcome}")], "{}: {notes:?}", run.name);
    run.expect_nothing_lost_or_repeated(TURNS).await
}

/// The effects that the operator performs on the way of a run through a wait, up to the park and after it.
struct Learned {
    parking: BTreeSet<String>,
    going_on: BTreeSet<String>,
}

/// Effects with a count that has grown.
async fn performed_since(ctx: &TestContext, before: &BTreeMap<String, u64>) -> Result<BTreeSet<String>> {
    let now = ctx.operator.effects().await?;
    let grown = now.into_iter().filter(|(effect, count)| before.get(effect) != Some(count));
    Ok(grown.map(|(effect, _)| effect).collect())
}

/// Starts a run that asks a person, and waits until the person can decide.
async fn ask<'c>(ctx: &'c TestContext, name: &str) -> Result<Run<'c>> {
    let run = ctx.start(name, &asking()).await?;
    run.wait_for(Summary::Waiting, secs(120)).await?;
    ctx.approval_of(name, WAIT).await?;
    Ok(run)
}

/// A person approves. Then another run waits for a time. Both go on.
async fn go_on(ctx: &TestContext, asked: &Run<'_>) -> Result {
    ctx.approve(PERSON, asked, WAIT).await?;
    expect_went_on_once(asked, "Approved", LIMIT).await?;
    let timed = ctx.start(&format!("{}-later", asked.name), &waiting(2)).await?;
    expect_went_on_once(&timed, "Elapsed", LIMIT).await
}

/// Plays it all without a crash.
async fn learn(ctx: &TestContext) -> Result<Learned> {
    ctx.operator.is_done_with_earlier_tests().await?;
    let before = ctx.operator.effects().await?;
    let asked = ask(ctx, "learn").await?;
    let parked = ctx.operator.effects().await?;
    let mut learned = Learned { parking: performed_since(ctx, &before).await?, going_on: BTreeSet::new() };
    go_on(ctx, &asked).await?;
    learned.going_on = performed_since(ctx, &parked).await?;
    Ok(learned)
}

/// The points before and after each of these effects. A read changes nothing, and a run is created before it waits.
fn points(effects: impl Iterator<Item = String>) -> Vec<String> {
    let steps = effects.filter(|effect| !effect.starts_with("read-") && effect != "create-run");
    steps.flat_map(|effect| [format!("before:{effect}"), format!("after:{effect}")]).collect()
}

/// Waits until the operator has died at each of these points. Its pod dies once at each.
async fn expect_all_hit(ctx: &TestContext, when: &str, points: &[String]) -> Result<usize> {
    let hit = async || -> Result<usize> { Ok(usize::try_from(ctx.operator.restarts().await?)?) };
    let all = eventually(format!("{} crashes while {when}", points.len()), secs(60), async || {
        Ok(Some(hit().await?).filter(|hit| *hit == points.len()))
    });
    let hit = match all.await {
        Ok(hit) => hit,
        Err(error) => anyhow::bail!("{error:#}; hit {} of {points:?}", hit().await?),
    };
    println!("{when}: {hit} points hit, {} learned: {points:?}", points.len());
    Ok(hit)
}

/// What the operator does after the park is tested after the park, even if it does that before too.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_dies_at_any_step_of_a_wait_lets_the_run_go_on_once() -> Result {
    let ctx = TestContext::new("parked-crash").await?;
    ctx.grant(PERSON, APPROVER).await?;
    let Learned { parking, going_on } = learn(&ctx).await?;
    for expected in ["create-approval", "answer-wait", "settle-time", "create-worker", "status"] {
        anyhow::ensure!(
            parking.contains(expected) || going_on.contains(expected),
            "{expected} was not learned"
        );
    }
    let parking = points(parking.difference(&going_on).cloned());
    let going_on = points(going_on.into_iter());

    let operator = ctx.operator.with_env(CRASH_AT, &parking.join(",")).await?;
    let asked = ask(&ctx, "run").await?;
    let mut hit = expect_all_hit(&ctx, "parking", &parking).await?;
    operator.set_env(CRASH_AT, &going_on.join(",")).await?;
    go_on(&ctx, &asked).await?;
    hit += expect_all_hit(&ctx, "going on", &going_on).await?;
    assert_eq!(hit, parking.len() + going_on.len(), "points hit, and points learned");
    operator.revert().await?;
    ctx.end().await
}

/// Ten parked runs, which no outage wakes. Two of them wait for a time, the others for a person.
pub struct Parked<'c> {
    ctx: &'c TestContext,
    asking: Vec<Run<'c>>,
    timed: Vec<Run<'c>>,
    time_comes_after: Duration,
}

impl<'c> Parked<'c> {
    /// Starts the runs, and waits until none has a pod that runs. The time comes this many seconds after the park.
    pub async fn start(ctx: &'c TestContext, seconds: u32) -> Result<Self> {
        ctx.grant(PERSON, APPROVER).await?;
        let start = async |name: String, agent: Agent| ctx.start(&name, &agent).await;
        let asking = try_join_all((0..8).map(|n| start(format!("asking-{n}"), asking()))).await?;
        let timed = try_join_all((0..2).map(|n| start(format!("timed-{n}"), waiting(seconds)))).await?;
        for run in asking.iter().chain(&timed) {
            run.wait_for(Summary::Waiting, secs(60)).await?;
            eventually(format!("the pod of {} to end", run.name), secs(40), async || {
                Ok(run.pods().await?.iter().all(has_ended).then_some(()))
            })
            .await?;
        }
        for run in &asking {
            ctx.approval_of(&run.name, WAIT).await?;
        }
        Ok(Self { ctx, asking, timed, time_comes_after: secs(seconds.into()) })
    }

    /// Restarts the operator. It writes nothing about the runs.
    pub async fn expect_quiet_restart(&self) -> Result {
        let before = eventually("the last write about the parked runs", secs(30), async || {
            let before = self.writes()?;
            tokio::time::sleep(secs(3)).await;
            Ok((self.writes()? == before).then_some(before))
        })
        .await?;
        self.ctx.operator.scale_down().await?.revert().await?;
        // By then the new operator has looked at every run.
        tokio::time::sleep(secs(5)).await;
        assert_eq!(before, self.writes()?, "a parked run should cost a new operator no write");
        self.expect_no_pods()
    }

    /// Checks that those that wait for a person have got no pod.
    pub fn expect_no_pods(&self) -> Result {
        self.asking.iter().try_for_each(|run| self.ctx.audit.expect_pods(&run.name, [1]))
    }

    /// Checks that all of them wait, and that none has got a pod since its park.
    pub async fn expect_all_parked(&self) -> Result {
        for run in self.runs() {
            // After an outage of the store the status says so for a while.
            run.wait_for(Summary::Waiting, secs(60)).await?;
            self.ctx.audit.expect_pods(&run.name, [1])?;
            let running = run.pods().await?.iter().filter(|pod| !has_ended(pod)).count();
            anyhow::ensure!(running == 0, "parked run {} has {running} pods that run", run.name);
        }
        Ok(())
    }

    /// A person approves. Every run has gone on once by the end.
    pub async fn go_on(&self) -> Result {
        for run in &self.asking {
            self.ctx.approve(PERSON, run, WAIT).await?;
        }
        // The time of the others may still come.
        let later = LIMIT + self.time_comes_after;
        for (runs, outcome, limit) in [(&self.asking, "Approved", LIMIT), (&self.timed, "Elapsed", later)] {
            for run in runs {
                expect_went_on_once(run, outcome, limit).await?;
            }
        }
        Ok(())
    }

    /// The runs.
    pub fn runs(&self) -> impl Iterator<Item = &Run<'c>> {
        self.asking.iter().chain(&self.timed)
    }

    fn writes(&self) -> Result<Vec<dalsegno_e2e::audit::Entry>> {
        let writes = self.runs().map(|run| self.ctx.audit.operator_writes(&run.name));
        Ok(writes.collect::<Result<Vec<_>>>()?.concat())
    }
}
