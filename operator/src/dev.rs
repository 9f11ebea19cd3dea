//! `dalsegno dev`: the whole loop on one machine, with processes in the place of pods.
//!
//! The same gateway, a store of the same kind, the same decision. What a cluster gives them, a laptop gives them too:
//! [`laptop`] is the ground, [`kubelet`] presents a [`process`] as a pod, [`program`] is its image, [`tokens`] tells
//! whose a token is, and [`tell`] says on standard error what happens. Nothing waits for a watch: the run is looked at
//! when its process ends, when the decision wants it, and once a second, which is its pulse.

mod kubelet;
mod laptop;
mod process;
mod program;
mod run;
mod signals;
mod tell;
mod tokens;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_core::settings::Settings;
use dalsegno_core::{Effect, ObservedStore, decide};
use dalsegno_crds::{AgentRun, AgentRunStatus, ConditionType, Reason, Summary, find_condition};
use dalsegno_gateway::{Config, Gateway};
use jiff::Timestamp;
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::act::perform;
use crate::config::DevArgs;
use crate::controller::reconcile;
use crate::error::Error;
use crate::ground::Ground;
use crate::retention;
use crate::sync::lock;
use crate::telemetry::{Metrics, chain};
use kubelet::{GRACE, Kubelet};
use laptop::{Laptop, say};
use process::LeftBehind;
use program::Program;
use run::Input;
use signals::{Signals, Told};
use tell::{Teller, next_turn};
use tokens::Tokens;

/// How often the run is looked at, whatever happens: for deadlines, of which no process tells.
const LOOK: Duration = Duration::from_secs(1);
/// Between two ticks of a clock that nobody asked for.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3_600);
/// The database, in the folder.
const DATABASE: &str = "runs.db";
/// The folder of the attempts, in the folder.
const ATTEMPTS: &str = "attempts";

/// Runs the command until its run is over or held, or somebody stops it. No process of it is left behind.
///
/// # Errors
///
/// The folder, the store or the program cannot be used; the run itself ends in an exit code.
pub async fn dev(mut args: DevArgs) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new().context("listening for signals")?;
    let program = Program::new(args.command.clone())?;
    args.dir = open_folder(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    let database = args.dir.join(DATABASE);
    make_private(&database).with_context(|| format!("making {}", database.display()))?;
    let url = format!("sqlite://{}", database.display());
    dalsegno_store::migrate(&url).await.context("opening the store")?;
    let store = dalsegno_store::open(&url, None).await.context("opening the store")?;
    let found = if args.fresh { None } else { run::find(store.as_ref(), &args.name).await? };
    let uid = found.as_ref().map_or_else(|| Uuid::new_v4().to_string(), |row| row.object_uid.clone());
    let input = Input::of(&args, &uid, found.is_some())?;
    let mut run = run::object(&args, uid, &input, found.as_ref());

    let tokens = Arc::new(Tokens::default());
    let (kubelet, left_behind) = Kubelet::new(args.dir.join(ATTEMPTS), tokens.clone())
        .await
        .context("clearing what an earlier `dalsegno dev` left behind")?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for the worker")?;
    let gateway_url = format!("http://{}", listener.local_addr()?);
    let of = format!("{}/{}", run::NAMESPACE, args.name);
    say(&format!("the run {of} is served at {gateway_url}; to look at it:"));
    say(&format!("dalsegno show --database-url {} {of}", quoted(&url)));
    left_behind.iter().for_each(say_left_behind);
    if let Some(row) = found.as_ref().filter(|it| it.finish.is_none()) {
        say(&format!("the run goes on at turn {}; --fresh begins a new one", next_turn(row)));
    }

    // The gateway's first word: the silence before it is of no worker that begins now.
    store.beat().await.context("beginning to serve")?;
    let stop = CancellationToken::new();
    let gateway = Gateway::new(store.clone(), tokens, Config::default());
    let resumes = gateway.resumes();
    let serving = tokio::spawn(dalsegno_gateway::serve(listener, gateway, stop.clone().cancelled_owned()));
    tokio::spawn(retention::follow(store.clone(), Metrics::default(), stop.clone()));
    let settings = Settings::resolve(&run.spec, &laptop::defaults());
    let laptop = Laptop {
        resumes,
        store,
        url: quoted(&url),
        gateway_url,
        kubelet,
        program,
        input: input.text,
        since: Timestamp::now(),
        status: Mutex::default(),
        teller: Mutex::new(Teller::new(settings, found.as_ref())),
    };
    let ended = drive(&laptop, &mut run, args.kill_every, &mut signals).await;
    let left = leave(&laptop, &run, matches!(ended, Ok(Ended::Stopped(_))), &mut signals).await;
    stop.cancel();
    serving.await.context("the gateway panicked")?.context("serving the worker")?;
    let ended = ended?;
    left?;
    Ok(match ended {
        Ended::Succeeded => ExitCode::SUCCESS,
        Ended::NeedsAPerson => ExitCode::FAILURE,
        Ended::Stopped(signal) => ExitCode::from(signal.exit_code()),
    })
}

/// Why nothing more is done.
enum Ended {
    /// The run succeeded.
    Succeeded,
    /// The run is over otherwise, or held.
    NeedsAPerson,
    /// Somebody stopped us.
    Stopped(Told),
}

/// Observe, decide, act, until there is nothing more to do.
async fn drive(
    laptop: &Laptop,
    run: &mut AgentRun,
    kill_every: Option<Duration>,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let kubelet = &laptop.kubelet;
    let period = kill_every.unwrap_or(NEVER);
    let mut kills = interval_at(Instant::now() + period, period);
    kills.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut waits = false;
    loop {
        let again = match reconcile(run, laptop).await {
            Ok(again) => again.map_or(LOOK, |again| again.min(LOOK)),
            // As on a full disk: nothing is charged, and it goes on by itself.
            Err(error @ Error::Laptop { .. }) => {
                if !waits {
                    say(&format!("waiting: {}", chain(&error)));
                }
                waits = true;
                LOOK
            }
            Err(error) => return Err(error.into()),
        };
        run.status = lock(&laptop.status).clone();
        let status = run.status.as_ref();
        match status.and_then(|it| it.summary) {
            Some(Summary::Held) => {
                status.iter().for_each(|it| say_held(laptop, run, it));
                return Ok(Ended::NeedsAPerson);
            }
            Some(summary @ (Summary::Succeeded | Summary::Failed | Summary::Cancelled))
                if !kubelet.is_busy() =>
            {
                status.iter().for_each(|it| say_over(summary, it));
                let succeeded = summary == Summary::Succeeded;
                return Ok(if succeeded { Ended::Succeeded } else { Ended::NeedsAPerson });
            }
            _ => {}
        }
        tokio::select! {
            () = kubelet.changed() => {}
            () = sleep(again) => {}
            _ = kills.tick() => {
                kubelet.disrupt("EvictionByEvictionAPI", "killed, as --kill-every asks", Signal::KILL);
            }
            signal = signals.next() => return Ok(Ended::Stopped(signal)),
        }
    }
}

/// Waits until no process is left: as long as its grace, or until somebody is told again that we shall stop.
async fn wait_for_end(kubelet: &Kubelet, signals: &mut Signals) {
    let gone = async {
        while kubelet.is_busy() {
            kubelet.changed().await;
        }
    };
    tokio::select! {
        () = gone => return,
        () = sleep(GRACE) => {}
        () = told_again(signals) => {}
    }
    kubelet.signal(None, Signal::KILL);
    while kubelet.is_busy() {
        kubelet.changed().await;
    }
}

/// Waits until somebody is in a hurry. A terminal that closes may say so twice.
async fn told_again(signals: &mut Signals) {
    while signals.next().await == Told::Hangup {}
}

/// Ends what still runs. If `stopped`, records how the worker ended, and begins no other.
async fn leave(laptop: &Laptop, run: &AgentRun, stopped: bool, signals: &mut Signals) -> anyhow::Result<()> {
    if stopped {
        laptop.kubelet.disrupt("Interrupted", "somebody stopped `dalsegno dev`", Signal::TERM);
    } else {
        laptop.kubelet.signal(None, Signal::TERM);
    }
    wait_for_end(&laptop.kubelet, signals).await;
    if !stopped {
        return Ok(());
    }
    let observed = laptop.observe(run).await?;
    let decision = decide(run, &observed, Timestamp::now());
    for effect in decision.effects {
        if matches!(effect, Effect::EndAttempt { .. }) {
            perform(laptop, run, effect).await?;
        }
    }
    if let ObservedStore::Found(row) = laptop.observe(run).await?.store {
        say(&match row.finish {
            Some(_) => "stopped; the run is over".to_owned(),
            None => format!("stopped; the same command goes on at turn {}", next_turn(&row)),
        });
    }
    Ok(())
}

fn say_left_behind(left: &LeftBehind) {
    if left.worker {
        say("a worker of an earlier `dalsegno dev` was still there; it is killed");
    }
    if let Some(others) = &left.others {
        let numbers: Vec<_> = others.iter().map(|it| it.as_raw_nonzero().to_string()).collect();
        let who =
            if numbers.is_empty() { String::new() } else { format!(": process {}", numbers.join(", ")) };
        say(&format!(
            "warning: what an earlier worker began outside its process group still runs, and is left alone{who}"
        ));
    }
}

fn say_over(summary: Summary, status: &AgentRunStatus) {
    let turn = status.checkpoint.as_ref().map_or(0, |it| it.turn);
    let result = status.result.as_ref();
    let said = [result.and_then(|it| it.reason.as_deref()), result.and_then(|it| it.message.as_deref())];
    let said = said.map(|it| it.map_or_else(String::new, |it| format!(": {it}"))).concat();
    say(&format!("the run is over after turn {turn}, {summary}{said}; --fresh begins a new one"));
}

fn say_held(laptop: &Laptop, run: &AgentRun, status: &AgentRunStatus) {
    let Some(held) = find_condition(&status.conditions, ConditionType::Held) else { return };
    let reason: Option<Reason> = held.reason.parse().ok();
    // The way out that stands in the condition is a cluster's.
    let of_cluster = reason.map_or("", Reason::remediation);
    let what = held.message.strip_suffix(of_cluster).unwrap_or(&held.message).trim_end();
    say(&format!("held: {}: {what}", held.reason));
    say(&format!("way out: {}", laptop.way_out(run, reason)));
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "/:._-".contains(it);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Makes the folder, for its owner alone and not for version control; answers its whole path.
fn open_folder(folder: &Path) -> std::io::Result<PathBuf> {
    if !folder.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::write(folder.join(".gitignore"), "*\n")?;
    }
    folder.canonicalize()
}

/// Makes the file, if it is not there, for its owner alone: the folder may have been there before, and open to others. What
/// SQLite puts beside its database has the rights of it.
fn make_private(file: &Path) -> std::io::Result<()> {
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file).map(drop)
}
