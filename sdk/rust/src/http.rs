//! The same bytes until they are answered.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Duration;
use std::{fs, thread};

use dalsegno_protocol::{Code, Limits, Problem};
use serde::de::{DeserializeOwned, IgnoredAny};
use ureq::unversioned::resolver::Resolver;

use crate::line::{Addresses, Line};
use crate::{Error, Result, say};

/// The deadline of one try of a call: above the 20 s for which an attach may wait for the version's verdict.
pub(crate) const CALL: Duration = Duration::from_secs(30);
/// The deadline of one try of a heartbeat: one that hangs must not outlast the lease.
pub(crate) const BEAT: Duration = Duration::from_secs(5);

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// How long a connection is kept between two calls: less than the gateway keeps it.
const KEPT: Duration = Duration::from_secs(55);

pub(crate) type OnOver = Box<dyn Fn(&Problem) + Send + Sync>;

/// The gateway's side of one run.
pub(crate) struct Client {
    /// For all but heartbeats: turns that stay on one connection stay with one gateway.
    turns: Line,
    beats: Line,
    pub(crate) base: String,
    token_file: PathBuf,
    /// The bearer once attached; until then it is the pod's token.
    pub(crate) instance: OnceLock<String>,
    /// Whether this process itself ended the run, so that a refused heartbeat is no news.
    pub(crate) ended_here: AtomicBool,
    on_over: OnOver,
    /// The loop and the heartbeat may both hear that it is over; one is enough.
    told: Once,
}

/// What came back, whatever it says.
struct Answer {
    status: u16,
    retry_after: Duration,
    body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(base: &str, token_file: PathBuf, on_over: OnOver, lookup: impl Resolver) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        let config = config.max_idle_age(KEPT).build();
        let addresses = Addresses::new(lookup);
        Self {
            turns: Line::new(config.clone(), addresses.clone()),
            beats: Line::new(config, addresses),
            base: base.trim_end_matches('/').to_owned(),
            token_file,
            instance: OnceLock::new(),
            ended_here: AtomicBool::new(false),
            on_over,
            told: Once::new(),
        }
    }

    /// Calls the gateway (`body` absent: by GET) until it answers, and reads the answer.
    pub(crate) fn call<T: DeserializeOwned>(&self, path: &str, body: Option<&[u8]>) -> Result<T> {
        let answer = self.send(path, body, CALL)?;
        serde_json::from_slice(&answer)
            .map_err(|source| Error::Json { doing: "read the gateway's answer", source })
    }

    /// Sends the same bytes until they are answered, for as long as the pod lives; returns the answer's body. No try and
    /// no wait is longer than `timeout`. A body above the limit is refused here: what hangs up on it is never heard.
    pub(crate) fn send(&self, path: &str, body: Option<&[u8]>, timeout: Duration) -> Result<Vec<u8>> {
        let length = body.map_or(0, <[u8]>::len);
        if length > Limits::BODY_BYTES {
            let detail = format!(
                "the body has {length} bytes, and {} are the limit; commit what changed by channels, or keep large things \
                 elsewhere",
                Limits::BODY_BYTES
            );
            return Err(Error::Refused { path: named(path), problem: Problem::new(Code::TooLarge, detail) });
        }
        let line = if path == "heartbeat" { &self.beats } else { &self.turns };
        let mut delay = FIRST_DELAY;
        loop {
            let bearer = self.bearer()?;
            let (why, at_least) = match self.exchange(&line.agent(), path, &bearer, body, timeout) {
                Ok(answer) if answer.status == 200 => {
                    match serde_json::from_slice::<HashMap<String, IgnoredAny>>(&answer.body) {
                        Ok(_) => return Ok(answer.body),
                        // It was cut short, or is a page of somebody between here and the gateway.
                        Err(error) => (error.to_string(), Duration::ZERO),
                    }
                }
                Ok(answer) if answer.status != 429 && answer.status < 500 => {
                    return Err(self.refusal(path, answer));
                }
                Ok(answer) => (answer.status.to_string(), answer.retry_after.min(timeout)),
                Err(never @ (ureq::Error::Http(_) | ureq::Error::BadUri(_) | ureq::Error::TlsRequired)) => {
                    return Err(Error::Unsendable { path: named(path), source: Box::new(never) });
                }
                // Whether it was heard is unknown; the gateway tells a repeat by its bytes.
                Err(error) => (error.to_string(), Duration::ZERO),
            };
            line.renew();
            if delay == LONGEST_DELAY {
                say(&format!("{}: no answer yet ({why}), sending it again", named(path)));
            }
            thread::sleep(delay.mul_f64(rand::random_range(0.5..1.0)).max(at_least));
            delay = (delay * 2).min(LONGEST_DELAY);
        }
    }

    /// The token is read for each try: the kubelet renews it.
    fn bearer(&self) -> Result<String> {
        if let Some(instance) = self.instance.get() {
            return Ok(instance.clone());
        }
        let token = fs::read_to_string(&self.token_file)
            .map_err(|source| Error::File { path: self.token_file.clone(), source })?;
        Ok(token.trim().to_owned())
    }

    fn exchange(
        &self,
        agent: &ureq::Agent,
        path: &str,
        bearer: &str,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> std::result::Result<Answer, ureq::Error> {
        let url = format!("{}/{path}", self.base);
        let bearer = format!("Bearer {bearer}");
        // Half of the time is left to those addresses that are known, where no name server answers.
        let lookup = Some(timeout / 2);
        let mut response = match body {
            None => agent
                .get(&url)
                .header("Authorization", bearer)
                .config()
                .timeout_global(Some(timeout))
                .timeout_resolve(lookup)
                .build()
                .call(),
            Some(bytes) => agent
                .post(&url)
                .header("Authorization", bearer)
                .header("Content-Type", "application/json")
                .config()
                .timeout_global(Some(timeout))
                .timeout_resolve(lookup)
                .build()
                .send(bytes),
        }?;
        let retry_after =
            response.headers().get("Retry-After").and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Answer {
            status: response.status().as_u16(),
            retry_after: Duration::from_secs(retry_after.unwrap_or(0)),
            body: response.body_mut().with_config().limit(u64::MAX).read_to_vec()?,
        })
    }

    fn refusal(&self, path: &str, answer: Answer) -> Error {
        let Answer { status, body, .. } = answer;
        let path = named(path);
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
                let known = problem.code == Code::Finished || self.ended_here.load(Ordering::SeqCst);
                if !(path == "heartbeat" && known) {
                    self.told.call_once(|| (self.on_over)(&problem));
                }
                Error::Over(problem)
            }
            _ => Error::Refused { path, problem },
        }
    }
}

/// A path as it may stand in a log: without the id of a call, and without what records are asked for.
fn named(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    match path.split('/').collect::<Vec<_>>()[..] {
        ["calls", _, verb] => format!("calls/*/{verb}"),
        _ => path.to_owned(),
    }
}

/// Percent-encoded, so that it is one part of a path, or one value of a query.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}
