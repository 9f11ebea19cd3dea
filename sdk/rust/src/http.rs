//! HTTP to the gateway: sends the same bytes until they are answered.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, thread};

use dalsegno_protocol::{AttachRequest, AttachResponse, Code, FIRST_CONTRACT, Limits, Problem, contract_of};
use serde::de::{DeserializeOwned, IgnoredAny};
use ureq::unversioned::resolver::Resolver;

use crate::connection::{Addresses, Connection};
use crate::json::to_bytes;
use crate::tls::CaError;
use crate::{Class, Error, Result, log_line, terminate};

/// Timeout of one try of a call. It is above the 20 s that an attach may wait for the version check.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of one try of a heartbeat. About five tries fit into a lease of 15 s.
pub(crate) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// Pause between two looks at the version of the contract.
const ROLL_OUT_PAUSE: Duration = Duration::from_secs(1);

/// How long an idle connection is kept. The gateway keeps it longer.
const MAX_IDLE: Duration = Duration::from_secs(55);

/// The files that the operator mounts. They are read when they are needed, because they are replaced.
pub(crate) struct Files {
    /// The pod's token.
    pub(crate) token: PathBuf,
    /// The gateway's CAs.
    pub(crate) ca: Option<PathBuf>,
}

pub(crate) type OnEnded = Box<dyn Fn(&Problem) + Send + Sync>;

/// The client of one run.
pub(crate) struct Client {
    /// For everything but heartbeats. Turns on one connection stay with one gateway.
    turns: Connection,
    heartbeats: Connection,
    pub(crate) base: String,
    token_file: PathBuf,
    /// The bearer after the attach. Before it, the bearer is the pod's token.
    pub(crate) instance: OnceLock<String>,
    /// The lowest version of the contract among the gateways, as the last attach said.
    contract: AtomicI32,
    /// Whether this process has ended its attempt. A heartbeat that is refused afterwards is expected.
    pub(crate) ended_here: AtomicBool,
    /// Whether a park is sent and not answered. A heartbeat that is refused meanwhile says nothing: the answer to the
    /// park says whether the attempt is over.
    pub(crate) parking: AtomicBool,
    /// How long a call may go unanswered; `None`: for as long as the pod lives.
    pub(crate) store_timeout: Option<Duration>,
    on_ended: OnEnded,
    /// The loop and the heartbeats may both get the answer that the run has ended. The hook runs once.
    hook_called: Once,
}

/// One request. It is a GET if it has no body, else a POST.
struct Request<'a> {
    path: &'a str,
    body: Option<&'a [u8]>,
    /// Timeout of one try.
    timeout: Duration,
}

/// A response of any status.
struct Response {
    status: u16,
    retry_after: Duration,
    body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(base: &str, files: Files, on_ended: OnEnded, resolver: impl Resolver) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let config = config.max_idle_age(MAX_IDLE).build();
        let addresses = Addresses::new(resolver);
        Self {
            turns: Connection::new(config.clone(), addresses.clone(), files.ca.clone()),
            heartbeats: Connection::new(config, addresses, files.ca),
            base: base.trim_end_matches('/').to_owned(),
            token_file: files.token,
            instance: OnceLock::new(),
            contract: AtomicI32::new(FIRST_CONTRACT),
            ended_here: AtomicBool::new(false),
            parking: AtomicBool::new(false),
            store_timeout: None,
            on_ended,
            hook_called: Once::new(),
        }
    }

    /// Attaches with this instance. Attaching again with the same one asks for the version of the contract.
    pub(crate) fn attach(&self, instance: &str) -> Result<AttachResponse> {
        let body = to_bytes(&AttachRequest { instance: instance.to_owned() })?;
        let attached: AttachResponse = self.call("attach", Some(&body))?;
        self.contract.store(attached.contract, Ordering::Relaxed);
        Ok(attached)
    }

    /// Whether every gateway had this version of the contract when this process attached last.
    pub(crate) fn has_contract(&self, version: i32) -> bool {
        self.contract.load(Ordering::Relaxed) >= version
    }

    /// Whether every gateway has this version of the contract. Asks, if that was not so before.
    pub(crate) fn gets_contract(&self, needed: i32) -> Result<bool> {
        match self.instance.get() {
            Some(instance) if !self.has_contract(needed) => Ok(self.attach(instance)?.contract >= needed),
            _ => Ok(true),
        }
    }

    /// Waits until every gateway has this version of the contract, which the request of this path needs. During a roll-out
    /// the next request may reach a gateway of the version before, which would refuse it for good.
    pub(crate) fn await_contract(&self, path: &str, needed: i32) -> Result<()> {
        let mut is_logged = false;
        while !self.gets_contract(needed)? {
            if !is_logged {
                log_line(&format!(
                    "{}: waits until every gateway is of a version that has it",
                    loggable(path)
                ));
                is_logged = true;
            }
            thread::sleep(ROLL_OUT_PAUSE);
        }
        Ok(())
    }

    /// Sends a request until it is answered, as [`Self::send`] does, and reads the answer. Without a `body` it is a
    /// GET.
    pub(crate) fn call<T: DeserializeOwned>(&self, path: &str, body: Option<&[u8]>) -> Result<T> {
        let answer = self.send(path, body, CALL_TIMEOUT)?;
        serde_json::from_slice(&answer)
            .map_err(|source| Error::Json { operation: "read the gateway's answer", source })
    }

    /// Sends the same bytes until they are answered, and returns the answer's body. Ends the process if there is a
    /// [`Self::store_timeout`] and no answer within it, unless these are heartbeats. No try and no wait is longer than
    /// `timeout`. A body above the limit is refused here, because a gateway that closes
    /// the connection in the middle of a body cannot say why.
    pub(crate) fn send(&self, path: &str, body: Option<&[u8]>, timeout: Duration) -> Result<Vec<u8>> {
        let length = body.map_or(0, <[u8]>::len);
        if length > Limits::BODY_BYTES {
            let detail = format!(
                "the body has {length} bytes, and {} are the limit; commit what changed by channels, or keep large things \
                 elsewhere",
                Limits::BODY_BYTES
            );
            let problem = Problem::new(Code::TooLarge, detail);
            return Err(Error::Refused { path: loggable(path), problem });
        }
        self.await_contract(path, contract_of(path))?;
        let connection = if path == "heartbeat" { &self.heartbeats } else { &self.turns };
        let request = Request { path, body, timeout };
        let mut delay = FIRST_DELAY;
        let started = Instant::now();
        loop {
            let bearer = self.bearer(path)?;
            let (reason, min_delay) = match self.exchange(&connection.agent(), &request, &bearer) {
                Ok(response) if response.status == 200 => {
                    match serde_json::from_slice::<HashMap<String, IgnoredAny>>(&response.body) {
                        Ok(_) => return Ok(response.body),
                        // The body was cut short, or it is the page of a proxy.
                        Err(error) => (error.to_string(), Duration::ZERO),
                    }
                }
                Ok(response) if response.status != 429 && response.status < 500 => {
                    return Err(self.refusal(path, response));
                }
                Ok(response) => (response.status.to_string(), response.retry_after.min(timeout)),
                Err(error @ (ureq::Error::Http(_) | ureq::Error::BadUri(_) | ureq::Error::TlsRequired)) => {
                    return Err(Error::InvalidRequest { path: loggable(path), source: Box::new(error) });
                }
                // Nothing was sent, and trying again does not help.
                Err(ureq::Error::Other(source)) if source.is::<CaError>() => {
                    return Err(Error::InvalidRequest { path: loggable(path), source });
                }
                // It is unknown whether the request arrived. The gateway recognises a repeat by its bytes.
                Err(error) => (error.to_string(), Duration::ZERO),
            };
            connection.renew();
            if path != "heartbeat" && self.store_timeout.is_some_and(|longest| started.elapsed() >= longest) {
                give_up(path, started.elapsed(), &reason);
            }
            if delay == LONGEST_DELAY {
                log_line(&format!("{}: no answer yet ({reason}), sending it again", loggable(path)));
            }
            thread::sleep(delay.mul_f64(rand::random_range(0.5..1.0)).max(min_delay));
            delay = (delay * 2).min(LONGEST_DELAY);
        }
    }

    /// Reads the token anew for each try, because the kubelet renews it.
    fn bearer(&self, path: &str) -> Result<String> {
        if let Some(instance) = self.instance.get().filter(|_| path != "attach") {
            return Ok(instance.clone());
        }
        let token = fs::read_to_string(&self.token_file)
            .map_err(|source| Error::File { path: self.token_file.clone(), source })?;
        Ok(token.trim().to_owned())
    }

    fn exchange(
        &self,
        agent: &ureq::Agent,
        request: &Request<'_>,
        bearer: &str,
    ) -> std::result::Result<Response, ureq::Error> {
        let Request { path, body, timeout } = *request;
        let url = format!("{}/{path}", self.base);
        let bearer = format!("Bearer {bearer}");
        // If no name server answers, the second half of the time is left for the known addresses.
        let resolve_timeout = Some(timeout / 2);
        let mut response = match body {
            None => agent
                .get(&url)
                .header("Authorization", bearer)
                .config()
                .timeout_global(Some(timeout))
                .timeout_resolve(resolve_timeout)
                .build()
                .call(),
            Some(bytes) => agent
                .post(&url)
                .header("Authorization", bearer)
                .header("Content-Type", "application/json")
                .config()
                .timeout_global(Some(timeout))
                .timeout_resolve(resolve_timeout)
                .build()
                .send(bytes),
        }?;
        let retry_after =
            response.headers().get("Retry-After").and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Response {
            status: response.status().as_u16(),
            retry_after: Duration::from_secs(retry_after.unwrap_or(0)),
            body: response.body_mut().with_config().limit(u64::MAX).read_to_vec()?,
        })
    }

    fn refusal(&self, path: &str, response: Response) -> Error {
        let Response { status, body, retry_after: _ } = response;
        let path = loggable(path);
        let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
            let answer = String::from_utf8_lossy(&body).chars().take(512).collect();
            return Error::Unexpected { path, status, answer };
        };
        match problem.code {
            Code::Fenced
            | Code::AttemptSpent
            | Code::VersionIncompatible
            | Code::CheckpointCorrupt
            | Code::Finished => {
                // In this order: a park marks the end before it is over.
                let ends_itself =
                    self.parking.load(Ordering::SeqCst) || self.ended_here.load(Ordering::SeqCst);
                let heartbeat = path == "heartbeat" && (problem.code == Code::Finished || ends_itself);
                // A repeated boundary that parked is in the store, and its own park fences it.
                let parked = ends_itself && problem.committed == Some(true);
                if !(heartbeat || parked) {
                    self.hook_called.call_once(|| (self.on_ended)(&problem));
                }
                Error::Ended(problem)
            }
            _ => Error::Refused { path, problem },
        }
    }
}

/// Ends the process as a disruption, because the agent did not cause it.
fn give_up(path: &str, unanswered: Duration, reason: &str) -> ! {
    let (path, seconds) = (loggable(path), unanswered.as_secs());
    terminate(Class::Disruption, &format!("{path}: no answer for {seconds} s ({reason})"))
}

/// A path without secrets, for logs and errors: without the id of a call or a wait and without the query.
fn loggable(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    match path.split('/').collect::<Vec<_>>()[..] {
        ["calls", _, verb] => format!("calls/*/{verb}"),
        ["waits", _] => "waits/*".to_owned(),
        _ => path.to_owned(),
    }
}

/// Percent-encodes a text for use as one segment of a path or as one value of a query.
pub(crate) fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}
