//! What is true of a run, and what to do about it. Read it from the top: the first rule that applies decides.

use std::time::Duration;

use dalsegno_crds::{AgentRun, Cause, OperatingMode, Reason, Summary, names};
use dalsegno_model::{
    AttemptState, Class, Deadline, Identity, NewFinish, PodRecord, RunOutcome, RunRecord, Then,
};
use dalsegno_protocol::Limits;
use jiff::{SignedDuration, Timestamp};

use crate::corruption::{self, Footing};
use crate::evidence::{self, End};
use crate::pod::annotation;
use crate::recovery::{self, Hold};
use crate::settings::Settings;
use crate::situation::Situation;
use crate::trust::{self, Trust};
use crate::version::{self, Choice};
use crate::{
    AgentSight, Decision, Effect, Observed, PodSight, notices, pod, silence, status, strays, text, worker,
};

/// How soon a store that could not be asked is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// How soon is looked again at what no watch may tell of: a definition, another store, a prior run.
pub const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// How soon a node that is not Ready is looked at again.
const NODE_AGAIN: Duration = Duration::from_secs(2);
/// The steps of a start that follow each other faster are told together.
const QUICK_STEPS: SignedDuration = SignedDuration::from_secs(2);
/// Clocks are read in whole milliseconds: a little later is late enough.
const A_LITTLE: SignedDuration = SignedDuration::from_millis(50);

/// What is to be done, and where the run stands meanwhile.
struct Plan {
    effects: Vec<Effect>,
    situation: Situation,
    requeue: Option<Duration>,
}

impl Plan {
    /// Nothing to do.
    fn rest(situation: Situation) -> Self {
        Self { effects: Vec::new(), situation, requeue: None }
    }

    /// One change; what follows is decided on what it teaches.
    fn act(effect: Effect) -> Self {
        Self { effects: vec![effect], situation: Situation::Changing, requeue: None }
    }

    /// A person is needed.
    fn hold(hold: Hold) -> Self {
        Self::rest(Situation::Held(hold))
    }

    /// The current attempt is over.
    fn end(row: &RunRecord, end: End, then: Then) -> Self {
        Self::act(Effect::EndAttempt { run: row.id, ending: end.of(row.attempt.number), then })
    }

    fn again(self, after: Duration) -> Self {
        Self { requeue: Some(after), ..self }
    }

    fn again_in(self, left: SignedDuration) -> Self {
        self.again(Duration::try_from(left + A_LITTLE).unwrap_or(ASK_AGAIN))
    }
}

/// Decides. Pure and total: the same run, observation and time give the same decision.
pub fn decide(run: &AgentRun, observed: &Observed, now: Timestamp) -> Decision {
    let trust = trust::judge(run, observed);
    let Plan { mut effects, situation, requeue } = plan(run, observed, &trust, now);
    if let Some(row) = trust.row().filter(|_| situation != Situation::Changing) {
        let keep = if observed.agent().is_some() {
            Settings::of(run, &observed.agent).keep_pods
        } else {
            usize::MAX
        };
        effects.extend(strays::of(run, row, observed, keep));
    }
    let current = trust.row().and_then(|row| observed.pod(row.attempt.pod_uid.as_deref()?));
    let status = status::of(run, trust.row(), current, &situation, now);
    let notices = notices::of(run.status.as_ref(), &status);
    Decision { effects, status, notices, requeue }
}

fn plan(run: &AgentRun, observed: &Observed, trust: &Trust<'_>, now: Timestamp) -> Plan {
    match trust {
        Trust::Unknown(why) => Plan::rest(Situation::StoreUnknown((*why).to_owned())).again(ASK_AGAIN),
        Trust::New => take_up(run, observed),
        Trust::Row(row) => go_on(run, observed, row, now),
        Trust::Hold(hold) => Plan::hold(hold.clone()).again(LOOK_AGAIN),
        Trust::Over => Plan::rest(Situation::Closed).again(LOOK_AGAIN),
    }
}

/// A run that the store does not know. One that was cancelled is taken up too, so that it can come to its end.
fn take_up(run: &AgentRun, observed: &Observed) -> Plan {
    if observed.agent().is_none() && !is_cancelled(run) {
        return Plan::hold(no_agent(run, observed)).again(LOOK_AGAIN);
    }
    let settings = Settings::of(run, &observed.agent);
    Plan::act(Effect::CreateRun {
        reset_generation: reset_generation(run).unwrap_or_default(),
        deadlines: settings.deadlines,
        on_prior: settings.on_prior,
    })
}

/// A run that the store knows: what was asked of it since comes first.
fn go_on(run: &AgentRun, observed: &Observed, row: &RunRecord, now: Timestamp) -> Plan {
    let settings = Settings::of(run, &observed.agent);
    if row.retention != settings.retention && observed.agent().is_some() {
        return Plan::act(Effect::SetRetention(row.id, settings.retention));
    }
    if row.finish.is_some() {
        return over(run, row, observed, &settings);
    }
    if let Some(to) = reset_generation(run).filter(|to| *to > row.observed_reset_generation) {
        return Plan::act(Effect::ResetBudget { run: row.id, observed: row.observed_reset_generation, to });
    }
    if row.deadlines != settings.deadlines && observed.agent().is_some() {
        return Plan::act(Effect::SetDeadlines(row.id, settings.deadlines));
    }
    if is_cancelled(run) && row.cancel.is_none() {
        return Plan::act(Effect::RequestCancel(row.id));
    }
    match row.attempt.state {
        AttemptState::Reserved => reserved(run, observed, row, &settings, now),
        AttemptState::Created | AttemptState::Attached => supervise(run, observed, row, &settings, now),
        // It is ended and counted already; what is missing is its successor.
        AttemptState::Ended => Plan::act(Effect::EndAttempt {
            run: row.id,
            ending: evidence::known_end(&row.attempt),
            then: Then::Reserve,
        }),
    }
}

/// An attempt with a number and no pod.
fn reserved(
    run: &AgentRun,
    observed: &Observed,
    row: &RunRecord,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    // A pod of this attempt, even one that has ended, is recorded first and judged then.
    if let Some(seen) = observed.own_pods(run).find(|it| strays::is_current(row, it)) {
        return Plan::act(record_pod(observed, row, seen, settings));
    }
    if row.cancel.is_some() {
        return cancelled(row, "before it had a worker");
    }
    // Its defaults may hold the limits: without them none is judged.
    let Some(agent) = observed.agent() else {
        return Plan::hold(no_agent(run, observed)).again(LOOK_AGAIN);
    };
    if let Some(hold) = recovery::hold_of(row, settings, &worker::input_text(run)) {
        return if hold.is_final(settings) { failed(row, hold) } else { Plan::hold(hold) };
    }
    let (document, pinned) = match version::choose(row, agent, settings.on_mismatch, &observed.templates) {
        Choice::Current(document) => (document, false),
        Choice::Pinned(document) => (document, true),
        Choice::Needs(revision) => return Plan::act(Effect::ReadTemplate(revision)),
        Choice::Blocked(mismatch) => return Plan::hold(Hold::new(Reason::VersionBlocked, mismatch)),
    };
    if let Some(hold) = recovery::cannot_start(row, pinned) {
        return Plan::hold(hold);
    }
    if let Some(at) = recovery::next_attempt_time(row, settings).filter(|at| *at > row.now) {
        return Plan::rest(Situation::BackingOff(at)).again_in(at.duration_since(row.now));
    }
    match corruption::footing(row, observed.head.as_ref(), settings.on_corrupt_checkpoint) {
        Footing::Firm => {}
        Footing::Unknown => return Plan::act(Effect::VerifyHead(Box::new(row.clone()))),
        Footing::Lost(hold) => return Plan::hold(hold),
        Footing::Behind(rewind) => return Plan::act(Effect::Rewind(row.id, rewind)),
    }
    if observed.name_taken {
        let name = worker::pod_name(&row.name, row.attempt.number);
        let message = format!("a pod named {name} is there that is not this run's");
        return Plan::end(row, End::new(Cause::NameTaken, Class::Neutral, message), Then::Reserve);
    }
    let revision = document.hash();
    if let Some(refusal) = observed.refusal.as_ref().filter(|it| it.revision == revision)
        && let Some(left) = recovery::refusal_pause(refusal, now)
    {
        return Plan::rest(Situation::refused(refusal)).again_in(left);
    }
    match worker::pod_of(run, row, &document, pinned, &observed.gateway_url) {
        Ok(pod) => Plan::act(Effect::CreateWorker {
            run: row.id,
            attempt: row.attempt.number,
            pod: Box::new(pod),
            revision,
            document: document.text(),
        }),
        Err(error) => Plan::hold(Hold::new(Reason::TemplateInvalid, error.to_string())),
    }
}

/// An attempt with a pod.
fn supervise(
    run: &AgentRun,
    observed: &Observed,
    row: &RunRecord,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let attempt = &row.attempt;
    let seen = attempt.pod_uid.as_deref().and_then(|uid| observed.pod(uid));
    let end = evidence::end_of(row, seen, observed.node, now);
    if row.cancel.is_some() {
        if attempt.state != AttemptState::Attached {
            return cancelled(row, "before its worker attached");
        }
        if let Some(end) = end {
            return cancelled(row, &format!("and its worker ended: {}: {}", end.cause, end.message));
        }
        if silence::has_run_out(row, Deadline::Cancel) {
            return cancelled(row, "and its worker did not acknowledge it");
        }
    } else if let Some(end) = end {
        return Plan::end(row, end, Then::Reserve);
    }
    // There is one: an attempt that nothing is seen of has ended.
    let Some(seen) = seen else { return Plan::rest(Situation::Running) };
    if let Some(node) = pod::node(&seen.pod).filter(|_| attempt.scheduled_at.is_none()) {
        let node = node.to_owned();
        return Plan::act(Effect::RecordScheduled { run: row.id, attempt: attempt.number, node });
    }
    if let Some(digest) = pod::digest(&seen.pod).filter(|_| attempt.identity.is_none())
        && let Some(identity) = judge(observed, row, seen, settings, digest)
    {
        return Plan::act(Effect::RecordIdentity { run: row.id, attempt: attempt.number, identity });
    }
    let plan = match (attempt.state, Situation::starting(&seen.pod), next_told(run, row)) {
        (AttemptState::Attached, ..) => Plan::rest(Situation::Running),
        (_, Situation::Starting(Reason::Starting, _), Some(left)) => {
            Plan::rest(Situation::UnderWay).again_in(left)
        }
        (_, starting, _) => Plan::rest(starting),
    };
    // Without a lease a node's silence is all there is to go by, and nothing wakes us when it has lasted long enough.
    match observed.node {
        Some(node) if !node.ready && attempt.lease_renewed_at.is_none() => plan.again(NODE_AGAIN),
        _ => plan,
    }
}

/// When the status, which tells of this start already, is to tell what has come of it.
fn next_told(run: &AgentRun, row: &RunRecord) -> Option<SignedDuration> {
    let told = run.status.as_ref()?;
    let is_told = told.attempt.as_ref().is_some_and(|it| it.number == row.attempt.number)
        && matches!(told.summary, Some(Summary::BackingOff | Summary::Pending | Summary::Starting));
    let last_step = row.attempt.created_at.max(row.attempt.scheduled_at)?;
    let left = QUICK_STEPS - row.now.duration_since(last_step);
    (is_told && left.is_positive()).then_some(left)
}

/// A run that has come to its end: its worker may exit by itself for a while, and the AgentRun has its time to live.
fn over(run: &AgentRun, row: &RunRecord, observed: &Observed, settings: &Settings) -> Plan {
    let plan = Plan::rest(Situation::Over);
    if let Some(left) = observed.pods.iter().find_map(|it| strays::exit_grace(row, it)) {
        return plan.again_in(left);
    }
    let ttl = settings.ttl_after_finished;
    let Some(left) = row.finish.as_ref().zip(ttl).map(|(end, ttl)| ttl - row.now.duration_since(end.at))
    else {
        return plan;
    };
    // A person, or whoever waits for the run, has first to be told of its end.
    let is_told = run.status.as_ref().is_some_and(|status| status.completion_time.is_some());
    if left.is_positive() || !is_told {
        return plan.again_in(left.max(SignedDuration::ZERO));
    }
    Plan { effects: vec![Effect::DeleteRun], ..plan }
}

fn cancelled(row: &RunRecord, when: &str) -> Plan {
    let end = End::new(Cause::Cancelled, Class::Neutral, format!("the run was cancelled {when}"));
    finished(row, RunOutcome::Cancelled, Reason::Cancelled, end)
}

fn failed(row: &RunRecord, hold: Hold) -> Plan {
    finished(row, RunOutcome::Failed, hold.reason, End::new(Cause::Finished, Class::Neutral, hold.message))
}

/// The operator ends the run, and with it the current attempt.
fn finished(row: &RunRecord, outcome: RunOutcome, reason: Reason, end: End) -> Plan {
    let reason = reason.as_str().to_owned();
    let message = text::head(&end.message, Limits::FINISH_MESSAGE_BYTES);
    let finish = NewFinish { outcome, reason, message, output: None };
    Plan::end(row, end, Then::Finish(finish))
}

fn record_pod(observed: &Observed, row: &RunRecord, seen: &PodSight, settings: &Settings) -> Effect {
    // An image named by digest has that digest, whatever the kubelet will show.
    let named = pod::named_digest(&seen.pod);
    Effect::RecordPod {
        run: row.id,
        attempt: row.attempt.number,
        pod: PodRecord {
            uid: seen.uid().to_owned(),
            name: seen.name().to_owned(),
            revision: annotation(&seen.pod, names::ANNOTATION_REVISION).unwrap_or_default().to_owned(),
            identity: named.and_then(|digest| judge(observed, row, seen, settings, digest)),
        },
    }
}

fn judge(
    observed: &Observed,
    row: &RunRecord,
    seen: &PodSight,
    settings: &Settings,
    digest: &str,
) -> Option<Identity> {
    let declared = annotation(&seen.pod, names::ANNOTATION_AGENT_VERSION);
    version::judge(row, observed.agent(), settings.on_mismatch, declared, digest)
}

/// Nothing says what the run's agent is.
fn no_agent(run: &AgentRun, observed: &Observed) -> Hold {
    let name = run.spec.agent_ref.as_ref().map_or("", |it| it.name.as_str());
    match &observed.agent {
        AgentSight::Malformed(why) => {
            Hold::new(Reason::Malformed, format!("the AgentDefinition {name:?} cannot be read: {why}"))
        }
        AgentSight::NotFound | AgentSight::Found { .. } => Hold::new(
            Reason::AgentNotFound,
            format!("there is no AgentDefinition named {name:?} in this namespace"),
        ),
    }
}

fn is_cancelled(run: &AgentRun) -> bool {
    run.spec.operating_mode == Some(OperatingMode::Cancelled)
}

fn reset_generation(run: &AgentRun) -> Option<i64> {
    run.spec.recovery.as_ref()?.reset_generation
}
