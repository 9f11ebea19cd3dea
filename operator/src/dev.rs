//! `dalsegno dev`: gateway, store and recovery on one machine, with processes instead of pods.
//!
//! The gateway, the store and the decision are those of a cluster. [`local_runtime`] takes the place of the API server,
//! [`kubelet`] presents a [`process`] as a pod, [`program`] takes the place of its image, [`tokens`] issues worker tokens,
//! and [`progress`] prints what happens on standard error. There is no watch: the run is reconciled when its process ends,
//! when the decision asks for it, and once a second for deadlines.

mod agent_run;
mod decide;
mod folder;
mod kubelet;
mod local_runtime;
mod messages;
mod process;
mod program;
mod progress;
mod run_loop;
mod signals;
mod tokens;
mod verbs;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use dalsegno_core::settings::Settings;
use dalsegno_core::text::shell_quoted;
use dalsegno_gateway::{Config, Gateway, Listener};
use dalsegno_store::sqlite::Disk;
use dalsegno_store::{ConnectionOptions, ServedStore};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::DevArgs;
use crate::metrics::Metrics;
use crate::output::print_message;
use crate::tasks::notifications::Outbox;
use crate::tasks::retention;
use crate::volume::VolumeFailed;
use agent_run::Input;
use folder::{DATABASE, operating_mode, suspend_file};
use kubelet::Kubelet;
use local_runtime::LocalRuntime;
pub use local_runtime::NAMESPACE_UID;
use messages::print_orphans;
use program::Program;
use progress::{ProgressPrinter, next_turn};
use run_loop::{Outcome, run_until_done, shut_down};
use signals::Signals;
use tokens::Tokens;
pub use verbs::act_on;

/// Folder of the attempts, in the folder.
const ATTEMPTS: &str = "attempts";

/// Runs the command until its run is over or held, or until a signal. Leaves no process of the run behind.
///
/// # Errors
///
/// The folder, the store or the program cannot be used. The result of the run itself is in the exit code.
pub async fn dev(mut args: DevArgs) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new().context("listening for signals")?;
    let program = Program::new(args.command.clone())?;
    args.dir = open_folder(&args.dir).with_context(|| format!("creating {}", args.dir.display()))?;
    let (ServedStore { store, disk }, url) = open_store(&args.dir).await?;
    let found = if args.fresh { None } else { agent_run::find(store.as_ref(), &args.name).await? };
    let uid = found.as_ref().map_or_else(|| Uuid::new_v4().to_string(), |row| row.object_uid.clone());
    let input = Input::of(&args, &uid, found.is_some())?;
    let mut run = agent_run::object(&args, uid, &input, found.as_ref());

    let tokens = Arc::new(Tokens::default());
    let (kubelet, orphans) = Kubelet::new(args.dir.join(ATTEMPTS), tokens.clone())
        .await
        .context("cleaning up after an earlier `dalsegno dev`")?;
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listening for the worker")?;
    let gateway_url = format!("http://{}", listener.local_addr()?);
    let name = format!("{}/{}", agent_run::NAMESPACE, args.name);
    print_message(&format!("the run {name} is served at {gateway_url}; to look at it:"));
    print_message(&format!("dalsegno show --database-url {} {name}", shell_quoted(&url)));
    orphans.iter().for_each(print_orphans);
    if let Some(row) = found.as_ref().filter(|it| it.finish.is_none()) {
        print_message(&format!("the run continues at turn {}; --fresh starts a new one", next_turn(row)));
    }

    let suspend_file = suspend_file(&args.dir, &args.name);
    if operating_mode(&suspend_file).is_some() {
        print_message("the run is suspended; `dalsegno dev resume` lifts that");
    }
    // The gateway's first heartbeat. Its silence before now must not count against a worker that starts now.
    store.record_gateway_heartbeat().await.context("starting to serve")?;
    let stop = CancellationToken::new();
    let gateway = Gateway::new(store.clone(), tokens, Config::default());
    let state_reads = gateway.resume_reads();
    let listener = Listener::plain(listener, &gateway);
    let stopped = stop.clone().cancelled_owned();
    let serving = tokio::spawn(dalsegno_gateway::serve(vec![listener], gateway, stopped));
    tokio::spawn(retention::run(store.clone(), Metrics::default(), stop.clone()));
    // On a laptop a person is watching: notifications are only deleted.
    let outbox = Outbox { store: store.clone(), receiver: None, metrics: Metrics::default() };
    tokio::spawn(outbox.run(stop.clone()));
    let runtime = LocalRuntime {
        state_reads,
        store,
        url,
        gateway_url,
        kubelet,
        program,
        input: input.text,
        suspend_file,
        serving_since: Timestamp::now(),
        status: Mutex::default(),
        printer: Mutex::new(ProgressPrinter::new(settings(), found.as_ref())),
    };
    let outcome = tokio::select! {
        outcome = run_until_done(&runtime, &mut run, args.kill_every, &mut signals) => outcome,
        why = failed(disk) => Err(VolumeFailed(why).into()),
    };
    let interrupted = matches!(outcome, Ok(Outcome::Interrupted(_)));
    let shut_down = shut_down(&runtime, &run, interrupted, &mut signals).await;
    stop.cancel();
    serving.await.context("the gateway panicked")?.context("serving the worker")?;
    let outcome = outcome?;
    shut_down?;
    Ok(match outcome {
        Outcome::Succeeded => ExitCode::SUCCESS,
        Outcome::NotSucceeded => ExitCode::FAILURE,
        Outcome::Interrupted(signal) => ExitCode::from(signal.exit_code()),
    })
}

/// The settings of every run.
pub fn settings() -> Settings {
    Settings::resolve(&agent_run::spec(None), &local_runtime::defaults())
}

/// Waits until the volume of the store has failed.
async fn failed(disk: Option<Arc<Disk>>) -> String {
    match disk {
        Some(disk) => disk.failed().await,
        None => std::future::pending().await,
    }
}

/// Opens the store of the folder. Returns it with its URL.
async fn open_store(folder: &Path) -> anyhow::Result<(ServedStore, String)> {
    let database = folder.join(DATABASE);
    create_private(&database).with_context(|| format!("creating {}", database.display()))?;
    let url = format!("sqlite://{}", database.display());
    dalsegno_store::migrate(&url).await.context("opening the store")?;
    let served = dalsegno_store::open_to_serve(&url, None, &ConnectionOptions::default())
        .await
        .context("opening the store")?;
    Ok((served, url))
}

/// Creates the folder if it does not exist: readable by its owner alone, and ignored by git. Returns its absolute path.
fn open_folder(folder: &Path) -> std::io::Result<PathBuf> {
    if !folder.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::write(folder.join(".gitignore"), "*\n")?;
    }
    folder.canonicalize()
}

/// Creates the file if it does not exist, readable by its owner alone: an existing folder may be open to others. SQLite
/// gives its further files the same mode.
fn create_private(file: &Path) -> std::io::Result<()> {
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file).map(drop)
}
