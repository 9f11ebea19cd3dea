//! Taking a run over.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fs, process};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use dalsegno_protocol::{AttachRequest, AttachResponse, Code, Flags, Problem, StateResponse, env};
use ureq::unversioned::resolver::DefaultResolver;

use crate::http::{Client, OnOver};
use crate::json::to_bytes;
use crate::watch::{Asked, beat, listen_for_sigterm};
use crate::{Error, Result, Run, say};

/// How to attach, where [`Run::attach`] is not what is wanted.
pub struct Builder {
    heartbeat: bool,
    sigterm: bool,
    env: HashMap<String, String>,
    on_over: OnOver,
}

impl Default for Builder {
    fn default() -> Self {
        Self { heartbeat: true, sigterm: true, env: HashMap::new(), on_over: Box::new(leave) }
    }
}

impl Builder {
    /// Whether a thread sends heartbeats (it does). Without them a hang is found late, by the progress deadline.
    pub fn heartbeat(mut self, yes: bool) -> Self {
        self.heartbeat = yes;
        self
    }

    /// Whether SIGTERM is handled (it is). Without a handler the first process of a container never notices it.
    pub fn sigterm(mut self, yes: bool) -> Self {
        self.sigterm = yes;
        self
    }

    /// A value in place of an environment variable ([`mod@env`]).
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// What to do when nothing more is accepted of this process: it is fenced, spent, of the wrong version, or the
    /// run is finished. Called once, on the thread that hears it first, which may be the heartbeat's. Unless set, it
    /// says so on stderr and exits, 0 where the run is finished and else 1; where it returns, the call fails with
    /// [`Error::Over`].
    pub fn on_over(mut self, hook: impl Fn(&Problem) + Send + Sync + 'static) -> Self {
        self.on_over = Box::new(hook);
        self
    }

    /// Takes the run over; waits for as long as the gateway does not let this pod in.
    pub fn attach(self) -> Result<Run> {
        let term = Arc::new(AtomicBool::new(false));
        if self.sigterm {
            listen_for_sigterm(term.clone())?;
        }
        let input_file = PathBuf::from(self.get(env::INPUT_FILE)?);
        let input = fs::read(&input_file).map_err(|source| Error::File { path: input_file, source })?;
        let client = Client::new(
            &self.get(env::URL)?,
            self.get(env::TOKEN_FILE)?.into(),
            self.on_over,
            DefaultResolver::default(),
        );

        let instance = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let body = to_bytes(&AttachRequest { instance: instance.clone() })?;
        let mut attached: AttachResponse = client.call("attach", Some(&body))?;
        client.instance.get_or_init(|| instance);
        if attached.head.is_some() && attached.state.is_none() {
            let fetched: StateResponse = client.call("state", None)?;
            attached.state = Some(fetched.state);
        }

        let asked = Arc::new(Asked::default());
        asked.see(Flags {
            suspend: attached.suspend,
            cancel: attached.cancel,
            lease_seconds: attached.lease_seconds,
        });
        let client = Arc::new(client);
        let beats = self.heartbeat.then(|| {
            let every = Duration::from_secs(attached.heartbeat_seconds.into());
            beat(client.clone(), asked.clone(), every)
        });
        Ok(Run { client, asked, term, input, attached, claims: Mutex::default(), beats })
    }

    fn get(&self, name: &'static str) -> Result<String> {
        let set = self.env.get(name).cloned().or_else(|| std::env::var(name).ok());
        set.ok_or(Error::NotAWorker(name))
    }
}

/// What an agent does that is told it is over, unless it brings a hook of its own.
fn leave(problem: &Problem) {
    say(&format!("{}: {}", problem.code, problem.detail));
    process::exit(if problem.code == Code::Finished { 0 } else { 1 })
}
