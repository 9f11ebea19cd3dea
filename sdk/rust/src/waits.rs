//! Waits: what a run asks of a person, the clock, the inbox or a provider; and the parks that give its pod back.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dalsegno_protocol::{
    Code, Message, OnTimeout, ParkMode, ParkResponse, ParkResult, Wait, WaitAnswer, WaitKind, WaitRequest,
};
use serde::Serialize;

use crate::commit::park_request;
use crate::http::{CALL_TIMEOUT, percent_encode};
use crate::json::{raw, to_bytes};
use crate::run::leave;
use crate::{Error, Result, Run};

/// How long the gateway waits for an answer before it says that a wait is still open.
const POLL: Duration = Duration::from_secs(20);

/// Why the process leaves.
const PARKED: &str = "the run waits without a pod";

/// What a run waits for, see [`Run::wait_for`].
#[derive(Debug)]
pub struct WaitFor {
    request: WaitRequest,
    hold_pod: Duration,
}

impl WaitFor {
    /// A person's decision. People read the title as the agent's words.
    ///
    /// Commit what the proposal is made from before: a model that is asked again says something else. Without
    /// [`crate::ToolCall::approval`] an approval is advice.
    ///
    /// The proposal is what they decide on: any JSON of at most 1 MiB.
    pub fn approval(title: &str, proposal: &impl Serialize) -> Result<Self> {
        let mut wait = Self::new(WaitKind::Approval);
        wait.request.title = Some(title.to_owned());
        wait.request.proposal = Some(raw("write a proposal as JSON", proposal)?);
        Ok(wait)
    }

    /// A time. A later attempt may give another one: the time that was given first stays.
    pub fn until(time: SystemTime) -> Self {
        let mut wait = Self::new(WaitKind::Until);
        wait.request.time = Some(rfc_3339(time));
        wait
    }

    /// A message that no boundary has taken, of any topic unless [`Self::topic`] names one.
    pub fn message() -> Self {
        Self::new(WaitKind::Message)
    }

    /// The end of a provider's rate limit. Of the runs of a namespace that wait for the same provider, one goes on first,
    /// and then more and more. So call the provider again, and if it still refuses, wait again under another id; put
    /// [`Run::attempt`] into it.
    pub fn rate_limit(provider: &str) -> Self {
        let mut wait = Self::new(WaitKind::RateLimit);
        wait.request.provider = Some(provider.to_owned());
        wait
    }

    fn new(kind: WaitKind) -> Self {
        let request = WaitRequest {
            kind,
            title: None,
            summary: None,
            proposal: None,
            answer_schema: None,
            time: None,
            topic: None,
            provider: None,
            reset_time: None,
            deadline_seconds: None,
            on_timeout: OnTimeout::Answer,
        };
        Self { request, hold_pod: Duration::ZERO }
    }

    /// What the agent says about its proposal, at most 2 KiB.
    pub fn summary(mut self, summary: &str) -> Self {
        self.request.summary = Some(summary.to_owned());
        self
    }

    /// A JSON schema of the changes that a person may make.
    pub fn answer_schema(mut self, schema: &impl Serialize) -> Result<Self> {
        self.request.answer_schema = Some(raw("write a schema as JSON", schema)?);
        Ok(self)
    }

    /// The topic of the message.
    pub fn topic(mut self, topic: &str) -> Self {
        self.request.topic = Some(topic.to_owned());
        self
    }

    /// When the rate limit ends, as far as the provider said. What a run gave first stays.
    pub fn reset_time(mut self, time: SystemTime) -> Self {
        self.request.reset_time = Some(rfc_3339(time));
        self
    }

    /// The time from the opening to the deadline, in whole seconds, rounded up; and what happens then.
    pub fn deadline(mut self, after: Duration, on_timeout: OnTimeout) -> Self {
        let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
        self.request.deadline_seconds = Some(i64::try_from(seconds).unwrap_or(i64::MAX));
        self.request.on_timeout = on_timeout;
        self
    }

    /// How long [`Run::wait_for`] waits in this process before it parks, for answers that come quickly.
    pub fn hold_pod(mut self, time: Duration) -> Self {
        self.hold_pod = time;
        self
    }
}

impl Run {
    /// The open waits, and those answered since the head, when this attempt began.
    pub fn waits(&self) -> &[Wait] {
        &self.attached.waits
    }

    /// Opens a wait and returns it at once. The same wait under the same id is opened once, in later attempts too.
    ///
    /// [`Self::park_on`] or [`crate::Commit::park`] then gives the pod back until waits are answered; [`Self::wait_for`]
    /// does both. A run may have 64 open waits.
    ///
    /// # Errors
    ///
    /// The gateway refuses with [`Code::Invalid`] if a wait with this id was opened with other fields, with
    /// [`Code::TooManyWaits`], or with [`Code::TooLarge`].
    pub fn wait(&self, id: &str, wait: &WaitFor) -> Result<Wait> {
        let request = &wait.request;
        let path = format!("waits/{}", percent_encode(id));
        let opened = self.client.call(&path, Some(&to_bytes(request)?));
        // Agents compute a time anew in each attempt.
        let timed = matches!(request.kind, WaitKind::Until | WaitKind::RateLimit);
        match opened {
            Err(Error::Refused { problem, path }) if problem.code == Code::Invalid && timed => {
                match self.read_wait(id, Duration::ZERO) {
                    Ok(first) if first.kind == request.kind => Ok(first),
                    _ => Err(Error::Refused { problem, path }),
                }
            }
            opened => opened,
        }
    }

    /// Returns the answer of a wait, which it opens. While there is none, the process parks and exits with 0; the next
    /// attempt calls this again, and gets the answer.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`] and [`Self::park_on`].
    pub fn wait_for(&self, id: &str, wait: &WaitFor) -> Result<WaitAnswer> {
        let held_until = Instant::now() + wait.hold_pod;
        let mut opened = self.wait(id, wait)?;
        loop {
            if let Some(answer) = opened.answer {
                return Ok(answer);
            }
            let left = held_until.saturating_duration_since(Instant::now());
            opened = if !left.is_zero() && !self.must_leave() {
                self.read_wait(id, left)?
            } else if self.park_on(&[id], ParkMode::All)? {
                leave(0, PARKED)
            } else {
                self.read_wait(id, Duration::ZERO)?
            };
        }
    }

    /// As [`Self::wait_for`], for [`WaitFor::message`]: returns the message, or `None` if the deadline passed first. Take
    /// it with [`crate::Commit::take`].
    ///
    /// # Errors
    ///
    /// [`Error::MessageTaken`] if a boundary has taken the message.
    pub fn wait_for_message(&self, id: &str, wait: &WaitFor) -> Result<Option<Message>> {
        let Some(position) = self.wait_for(id, wait)?.position else { return Ok(None) };
        let first = self.inbox_page(&format!("after={}&limit=1", position - 1))?.messages.into_iter().next();
        match first {
            Some(message) if message.position == position => Ok(Some(message)),
            _ => Err(Error::MessageTaken),
        }
    }

    /// Ends the attempt of a suspended run, as [`Self::park_on`] without waits.
    pub fn park(&self) -> Result<bool> {
        self.park_on(&[], ParkMode::All)
    }

    /// Ends the attempt until all or any of these waits are answered; without waits, until a suspend is lifted. Returns
    /// whether the attempt is over: then the gateway accepts nothing more from this process, and a later attempt continues
    /// after the head, so exit with 0. If the waits are answered already, or nobody suspends the run any more, the attempt
    /// goes on. If the run is suspended or cancelled, the park acknowledges that.
    ///
    /// # Errors
    ///
    /// The gateway refuses with [`Code::UnsettledCalls`] while the outcome of a call is unknown: of an earlier attempt's
    /// call, or of a call of this process with the policy `probe` or `ask`. Then the attempt goes on.
    pub fn park_on(&self, waits: &[&str], mode: ParkMode) -> Result<bool> {
        let body = to_bytes(&park_request(waits, mode))?;
        self.client.parking.store(true, Ordering::SeqCst);
        let answer = self.client.call("park", Some(&body));
        let parked = matches!(answer, Ok(ParkResponse { result: ParkResult::Parked }));
        if parked {
            self.mark_ended();
        }
        self.client.parking.store(false, Ordering::SeqCst);
        let ParkResponse { result } = answer?;
        if result == ParkResult::Ready && waits.is_empty() {
            self.signals.suspend.store(false, Ordering::SeqCst);
        }
        Ok(parked)
    }

    /// Sends a boundary that parks, and exits with 0.
    ///
    /// If its answer was lost, the same bytes are fenced by the boundary's own park; the refusal says that the boundary is
    /// in the store.
    pub(crate) fn commit_and_exit<T>(&self, path: &str, body: &[u8]) -> Result<T> {
        self.client.parking.store(true, Ordering::SeqCst);
        match self.client.send(path, Some(body), CALL_TIMEOUT) {
            Ok(_) => leave(0, PARKED),
            Err(Error::Ended(problem)) if problem.committed == Some(true) => leave(0, PARKED),
            Err(error) => {
                self.client.parking.store(false, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// The wait as it is. While it is open, the gateway waits for its answer up to this long.
    fn read_wait(&self, id: &str, time: Duration) -> Result<Wait> {
        let seconds = time.min(POLL).as_secs_f64().ceil();
        self.client.call(&format!("waits/{}?seconds={seconds}", percent_encode(id)), None)
    }
}

/// A time as RFC 3339, in UTC, to the millisecond. A time before 1970 is 1970: both have passed.
fn rfc_3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
///
/// Years begin in March here, so that a leap day is the last day of its year; 719,468 days lie between 0000-03-01 and
/// 1970-01-01, and 400 years have 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339() {
        for (milliseconds, written) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_795_694_400_500, "2026-11-26T12:00:00.500Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc_3339(UNIX_EPOCH + Duration::from_millis(milliseconds)), written);
        }
        assert_eq!(rfc_3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
    }
}
