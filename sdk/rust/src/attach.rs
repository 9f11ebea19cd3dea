//! Attaching to a run.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;
use std::{fs, process};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use dalsegno_protocol::{Boundary, Code, Flags, Problem, StateResponse, Wait, WaitAnswer, env};
use ureq::unversioned::resolver::DefaultResolver;

use crate::claims::Claims;
use crate::http::{Client, Files, OnEnded};
use crate::watch::{WorkerSignals, handle_sigterm, start_heartbeats};
use crate::{Error, Result, Run, log_line};

/// Options of an attach, for an agent that needs others than [`Run::attach`] uses.
pub struct Builder {
    heartbeat: bool,
    sigterm: bool,
    env: HashMap<String, String>,
    store_timeout: Option<Duration>,
    on_ended: OnEnded,
    on_resume: Option<OnResume>,
}

type OnResume = Box<dyn FnOnce(&Run, &BTreeMap<String, WaitAnswer>) -> Result<()>>;

impl Run {
    /// Attaches to the run that the environment names, with heartbeats and a handler of SIGTERM.
    pub fn attach() -> Result<Self> {
        Self::builder().attach()
    }

    /// Attaches with other options.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            heartbeat: true,
            sigterm: true,
            env: HashMap::new(),
            store_timeout: None,
            on_ended: Box::new(exit_process),
            on_resume: None,
        }
    }
}

impl Builder {
    /// Whether a thread sends heartbeats; default `true`. Without heartbeats only the progress deadline finds a hang.
    pub fn heartbeat(mut self, yes: bool) -> Self {
        self.heartbeat = yes;
        self
    }

    /// Whether the SDK handles SIGTERM; default `true`. Process 1 of a container ignores SIGTERM if it has no handler.
    pub fn sigterm(mut self, yes: bool) -> Self {
        self.sigterm = yes;
        self
    }

    /// Sets a value that is used instead of the environment variable of this name ([`mod@env`]).
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets how long a call may go unanswered. Then the process writes a termination message of the class
    /// [`crate::Class::Disruption`] and exits with 1: the run is not charged, and its next attempt resumes after the last
    /// boundary. Default: [`env::STORE_TIMEOUT_SECONDS`], or else for as long as the pod lives. Heartbeats do not count.
    pub fn store_timeout(mut self, longest: Duration) -> Self {
        self.store_timeout = Some(longest);
        self
    }

    /// Sets the hook that runs when the gateway accepts nothing more from this process: the process is fenced, spent or
    /// of the wrong version, or the run is finished.
    ///
    /// The hook runs once, on the thread that gets the answer first, which may be the heartbeats' thread. The default
    /// hook logs the problem to stderr and exits: with 0 if the run is finished, else with 1. If the hook returns, the
    /// call fails with [`Error::Ended`].
    pub fn on_ended(mut self, hook: impl Fn(&Problem) + Send + Sync + 'static) -> Self {
        self.on_ended = Box::new(hook);
        self
    }

    /// Sets the hook that runs before [`Self::attach`] returns, if the run goes on from a checkpoint or from waits. It
    /// gets the answers since the head, by the ids of their waits: let the agent judge by its policy again. Its error is
    /// that of the attach.
    pub fn on_resume(
        mut self,
        hook: impl FnOnce(&Run, &BTreeMap<String, WaitAnswer>) -> Result<()> + 'static,
    ) -> Self {
        self.on_resume = Some(Box::new(hook));
        self
    }

    /// Attaches to the run. Waits for as long as the gateway does not accept this pod.
    ///
    /// # Errors
    ///
    /// The environment is not that of a worker, the gateway refuses for good, or the hook of [`Self::on_resume`] failed.
    pub fn attach(mut self) -> Result<Run> {
        let on_resume = self.on_resume.take();
        let run = self.attach_without_hook()?;
        if let Some(hook) = on_resume
            && (run.head().is_some() || !run.waits().is_empty())
        {
            let answer = |wait: &Wait| Some((wait.id.clone(), wait.answer.clone()?));
            hook(&run, &run.waits().iter().filter_map(answer).collect())?;
        }
        Ok(run)
    }

    fn attach_without_hook(self) -> Result<Run> {
        let term = Arc::new(AtomicBool::new(false));
        if self.sigterm {
            handle_sigterm(term.clone())?;
        }
        let input_file = PathBuf::from(self.get(env::INPUT_FILE)?);
        let input = fs::read(&input_file).map_err(|source| Error::File { path: input_file, source })?;
        let store_timeout = self.longest_wait()?;
        let mut client = Client::new(
            &self.get(env::URL)?,
            Files {
                token: self.get(env::TOKEN_FILE)?.into(),
                ca: self.get(env::CA_FILE).ok().map(PathBuf::from),
            },
            self.on_ended,
            DefaultResolver::default(),
        );
        client.store_timeout = store_timeout;

        let instance = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let mut attached = client.attach(&instance)?;
        client.instance.get_or_init(|| instance);
        if attached.head.is_some() && attached.state.is_none() {
            let fetched: StateResponse = client.call("state", None)?;
            attached.state = Some(fetched.state);
        }

        let signals = Arc::new(WorkerSignals::default());
        signals.update(Flags {
            suspend: attached.suspend,
            cancel: attached.cancel,
            limit: attached.limit,
            inbox: attached.inbox,
            lease_seconds: attached.lease_seconds,
        });
        let client = Arc::new(client);
        let heartbeats = self.heartbeat.then(|| {
            let period = Duration::from_secs(attached.heartbeat_seconds.into());
            start_heartbeats(client.clone(), signals.clone(), period)
        });
        let earlier = attached.completed_calls.iter().chain(&attached.unsettled_calls);
        let planned = attached.head.as_ref().filter(|head| head.boundary == Boundary::Plan);
        let claims = Claims::new(earlier.cloned(), planned.map(|head| head.turn));
        let read_to = AtomicI64::new(0);
        Ok(Run { client, signals, term, input, attached, claims, read_to, heartbeats })
    }

    fn get(&self, name: &'static str) -> Result<String> {
        self.look_up(name).ok_or(Error::NotAWorker(name))
    }

    fn look_up(&self, name: &str) -> Option<String> {
        self.env.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    /// The builder's value, or else the variable's. An empty variable is no value.
    fn longest_wait(&self) -> Result<Option<Duration>> {
        let name = env::STORE_TIMEOUT_SECONDS;
        let text = self.look_up(name).filter(|text| self.store_timeout.is_none() && !text.is_empty());
        let seconds = text.map(|text| text.parse::<u32>().ok().filter(|it| *it > 0));
        match seconds {
            None => Ok(self.store_timeout),
            Some(Some(seconds)) => Ok(Some(Duration::from_secs(seconds.into()))),
            Some(None) => Err(Error::NotSeconds(name)),
        }
    }
}

/// The default of [`Builder::on_ended`].
fn exit_process(problem: &Problem) {
    log_line(&format!("{}: {}", problem.code, problem.detail));
    process::exit(if problem.code == Code::Finished { 0 } else { 1 })
}
