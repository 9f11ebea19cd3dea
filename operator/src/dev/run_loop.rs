//! The loop of `dalsegno dev`: reconciles the run until it is done, then ends its process.

use std::time::Duration;

use dalsegno_core::{Effect, ObservedStore, decide};
use dalsegno_crds::{AgentRun, Summary};
use jiff::Timestamp;
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::folder::operating_mode;
use super::kubelet::{GRACE, Kubelet};
use super::local_runtime::LocalRuntime;
use super::messages::{print_held, print_over};
use super::progress::{KILLED, next_turn};
use super::signals::{Signals, StopSignal};
use crate::controller::act::perform;
use crate::controller::error::Error;
use crate::controller::reconcile::reconcile;
use crate::controller::worker_runtime::WorkerRuntime;
use crate::log::error_chain;
use crate::mutex::lock;
use crate::output::print_message;

/// Longest time between two reconciles: no process shows that a deadline has expired.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of kills that were not requested.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Why the loop ended.
pub enum Outcome {
    /// The run succeeded.
    Succeeded,
    /// The run failed, was cancelled or is held.
    NotSucceeded,
    /// A signal asked the program to stop.
    Interrupted(StopSignal),
}

/// Reconciles until the run is over or held, or until a signal.
pub async fn run_until_done(
    runtime: &LocalRuntime,
    run: &mut AgentRun,
    kill_every: Option<Duration>,
    signals: &mut Signals,
) -> anyhow::Result<Outcome> {
    let kubelet = &runtime.kubelet;
    let period = kill_every.unwrap_or(NEVER);
    let mut kills = interval_at(Instant::now() + period, period);
    kills.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut has_warned = false;
    loop {
        run.spec.operating_mode = operating_mode(&runtime.suspend_file);
        let delay = match reconcile(run, runtime).await {
            Ok(requeue) => requeue.map_or(MAX_INTERVAL, |requeue| requeue.min(MAX_INTERVAL)),
            // As on a full disk: nothing is charged, and the next reconcile tries again.
            Err(error @ Error::Io { .. }) => {
                if !has_warned {
                    print_message(&format!("waiting: {}", error_chain(&error)));
                }
                has_warned = true;
                MAX_INTERVAL
            }
            Err(error) => return Err(error.into()),
        };
        run.status = lock(&runtime.status).clone();
        if let Some(outcome) = outcome_of(runtime, run) {
            return Ok(outcome);
        }
        tokio::select! {
            () = kubelet.changed() => {}
            () = sleep(delay) => {}
            _ = kills.tick() => {
                kubelet.disrupt("EvictionByEvictionAPI", KILLED, Signal::KILL);
            }
            signal = signals.next() => return Ok(Outcome::Interrupted(signal)),
        }
    }
}

/// The outcome, if the run is held, or is over and its process has ended. Prints it.
fn outcome_of(runtime: &LocalRuntime, run: &AgentRun) -> Option<Outcome> {
    let status = run.status.as_ref()?;
    match status.summary? {
        Summary::Held => {
            print_held(status);
            Some(Outcome::NotSucceeded)
        }
        summary @ (Summary::Succeeded | Summary::Failed | Summary::Cancelled)
            if !runtime.kubelet.is_busy() =>
        {
            print_over(summary, status);
            let succeeded = summary == Summary::Succeeded;
            Some(if succeeded { Outcome::Succeeded } else { Outcome::NotSucceeded })
        }
        _ => None,
    }
}

/// Ends the process if one still runs. If the program was interrupted, also records the end of the attempt, and starts no
/// other.
pub async fn shut_down(
    runtime: &LocalRuntime,
    run: &AgentRun,
    interrupted: bool,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    if interrupted {
        runtime.kubelet.disrupt("Interrupted", "`dalsegno dev` was stopped", Signal::TERM);
    } else {
        runtime.kubelet.signal(None, Signal::TERM);
    }
    wait_for_processes(&runtime.kubelet, signals).await;
    if !interrupted {
        return Ok(());
    }
    let observed = runtime.observe(run).await?;
    let decision = decide(run, &observed, Timestamp::now());
    for effect in decision.effects {
        if matches!(effect, Effect::EndAttempt { .. }) {
            perform(runtime, run, effect).await?;
        }
    }
    if let ObservedStore::Found(row) = runtime.observe(run).await?.store {
        print_message(&match row.finish {
            Some(_) => "stopped; the run is over".to_owned(),
            None => format!("stopped; the same command continues at turn {}", next_turn(&row)),
        });
    }
    Ok(())
}

/// Waits until all processes have ended. Kills them after the grace period, or at a second signal.
async fn wait_for_processes(kubelet: &Kubelet, signals: &mut Signals) {
    let ended = async {
        while kubelet.is_busy() {
            kubelet.changed().await;
        }
    };
    tokio::select! {
        () = ended => return,
        () = sleep(GRACE) => {}
        () = second_signal(signals) => {}
    }
    kubelet.signal(None, Signal::KILL);
    while kubelet.is_busy() {
        kubelet.changed().await;
    }
}

/// Waits for a signal of a user who is in a hurry. SIGHUP does not count: a terminal that closes may send it twice.
async fn second_signal(signals: &mut Signals) {
    while signals.next().await == StopSignal::Hangup {}
}
