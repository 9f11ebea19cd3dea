//! What is expected of a decision, and what is true of every one.

use std::fmt::Display;
use std::time::Duration;

use dalsegno_core::{Decision, Effect};
use dalsegno_crds::{AgentRunStatus, Cause, ConditionType as Is, Reason, Summary, find_condition};
use dalsegno_model::{Class, Retention, Then};
use dalsegno_protocol::Limits;

use super::Given;

/// A row of the table.
pub struct Case {
    name: &'static str,
    given: Given,
    expect: Expect,
}

/// A row of the table: a sentence, what is given, what is expected.
pub fn case(name: &'static str, given: Given, expect: Expect) -> Case {
    Case { name, given, expect }
}

impl Case {
    /// The effects that are expected, in words.
    pub fn effects(&self) -> impl Iterator<Item = String> {
        self.expect.effects.iter().cloned()
    }
}

/// What is expected.
#[derive(Default)]
pub struct Expect {
    effects: Vec<String>,
    headline: Option<(Summary, Reason)>,
    requeue: Option<Duration>,
    says: Vec<String>,
    conditions: Vec<(Is, &'static str, Option<Reason>)>,
    absent: Vec<Is>,
    notices: Option<Vec<&'static str>>,
}

/// One change, in the words of [`in_words`]; what follows is decided on what it teaches.
pub fn acts(effect: impl Display) -> Expect {
    Expect { effects: vec![effect.to_string()], ..Expect::default() }
}

/// The attempt ends, and the next one is reserved.
pub fn ends(attempt: i32, cause: Cause, class: Class) -> Expect {
    acts(format!("end {attempt}: {cause}, {class:?}, then reserve"))
}

/// Nothing is changed; what stands in the columns.
pub fn rests(summary: Summary, reason: Reason) -> Expect {
    Expect { headline: Some((summary, reason)), ..Expect::default() }
}

impl Expect {
    /// A pod is deleted besides.
    pub fn stops(mut self, pod: &str) -> Self {
        self.effects.push(format!("stop {pod}"));
        self
    }

    /// The AgentRun is deleted.
    pub fn deletes(mut self) -> Self {
        self.effects.push("delete the run".to_owned());
        self
    }

    /// It is looked again after about so many seconds.
    pub fn again(mut self, seconds: u64) -> Self {
        self.requeue = Some(Duration::from_secs(seconds));
        self
    }

    /// A message of a condition, or of the attempt's end, contains this.
    pub fn says(mut self, text: impl Into<String>) -> Self {
        self.says.push(text.into());
        self
    }

    pub fn is(mut self, kind: Is, status: &'static str, reason: Reason) -> Self {
        self.conditions.push((kind, status, Some(reason)));
        self
    }

    pub fn lacks(mut self, kind: Is) -> Self {
        self.absent.push(kind);
        self
    }

    /// The reasons of the events.
    pub fn tells(mut self, notices: &[&'static str]) -> Self {
        self.notices = Some(notices.to_vec());
        self
    }
}

/// An effect in words.
pub fn in_words(effect: &Effect) -> String {
    match effect {
        Effect::CreateRun { reset_generation, deadlines: _, on_prior } => {
            format!("take up, resetGeneration {reset_generation}, prior runs: {on_prior:?}")
        }
        Effect::EndAttempt { run: _, ending, then } => {
            let then = match then {
                Then::Reserve => "reserve".to_owned(),
                Then::Nothing => "nothing".to_owned(),
                Then::Finish(finish) => format!("finish {:?} {}", finish.outcome, finish.reason),
            };
            format!("end {}: {}, {:?}, then {then}", ending.attempt, ending.cause, ending.class)
        }
        Effect::ReadTemplate(revision) => format!("read template {revision}"),
        Effect::VerifyHead(row) => format!("verify the head of attempt {}", row.attempt.number),
        Effect::Rewind(_, rewind) => format!("go back to {} by {}", rewind.to, rewind.actor),
        Effect::CreateWorker { pod, .. } => {
            let pinned = pod.metadata.annotations.iter().flatten().any(|(key, _)| key.ends_with("/pinned"));
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            format!("create {name}{}", if pinned { ", pinned" } else { "" })
        }
        Effect::RecordPod { run: _, attempt, pod } => {
            let verdict = pod.identity.as_ref().map_or_else(String::new, |it| format!(", {:?}", it.verdict));
            format!("record pod {} of attempt {attempt}{verdict}", pod.uid)
        }
        Effect::RecordScheduled { run: _, attempt, node } => {
            format!("record node {node} of attempt {attempt}")
        }
        Effect::RecordIdentity { run: _, attempt: _, identity } => {
            format!("identify {}: {:?}", identity.agent_version, identity.verdict)
        }
        Effect::RequestCancel(_) => "request cancel".to_owned(),
        Effect::ResetBudget { run: _, observed, to } => format!("reset budget {observed} to {to}"),
        Effect::SetDeadlines(..) => "set deadlines".to_owned(),
        Effect::SetRetention(_, Retention { days, keep_last }) => {
            let last = keep_last.map_or_else(String::new, |last| format!(" and the last {last}"));
            format!("keep {days} days{last}")
        }
        Effect::StopWorker { name, uid: _ } => format!("stop {name}"),
        Effect::DeleteRun => "delete the run".to_owned(),
        Effect::MarkDeleted => "mark deleted".to_owned(),
    }
}

/// Tries all rows, and tells of every one that fails.
pub fn try_all(cases: Vec<Case>) {
    let failures: Vec<String> = cases
        .iter()
        .flat_map(|case| failures(case).into_iter().map(|it| format!("{}\n      {it}", case.name)))
        .collect();
    assert!(failures.is_empty(), "{} failure(s):\n\n  {}\n", failures.len(), failures.join("\n\n  "));
}

fn failures(Case { name: _, given, expect }: &Case) -> Vec<String> {
    let decision = given.decide();
    let mut failures = always(given, &decision);
    let mut check = |holds: bool, failure: &dyn Fn() -> String| {
        if !holds {
            failures.push(failure());
        }
    };
    let effects: Vec<String> = decision.effects.iter().map(in_words).collect();
    check(effects == expect.effects, &|| format!("effects: {effects:?}, expected {:?}", expect.effects));
    let status = &decision.status;
    if let Some((summary, reason)) = expect.headline {
        let found = (status.summary, status.reason);
        let expected = (Some(summary), Some(reason));
        check(found == expected, &|| format!("columns: {found:?}, expected {expected:?}"));
    }
    if let Some(after) = expect.requeue {
        let found = decision.requeue.unwrap_or_default();
        let near = found >= after && found <= after + Duration::from_millis(100);
        check(near, &|| format!("again in {found:?}, expected {after:?}"));
    }
    let said = messages(&decision);
    for text in &expect.says {
        check(said.contains(text.as_str()), &|| format!("should say {text:?}:\n{said}"));
    }
    for (kind, is, reason) in &expect.conditions {
        let found =
            find_condition(&status.conditions, *kind).map(|it| (it.status.as_str(), it.reason.as_str()));
        let expected = Some((*is, reason.map_or("", Reason::as_str)));
        check(found == expected, &|| format!("{kind}: {found:?}, expected {expected:?}"));
    }
    for kind in &expect.absent {
        let found = find_condition(&status.conditions, *kind);
        check(found.is_none(), &|| format!("should not be there: {found:?}"));
    }
    if let Some(expected) = &expect.notices {
        let found: Vec<&str> = decision.notices.iter().map(|it| it.reason.as_str()).collect();
        check(&found == expected, &|| format!("tells {found:?}, expected {expected:?}"));
    }
    failures
}

fn messages(decision: &Decision) -> String {
    let conditions = decision.status.conditions.iter().map(|it| format!("{}: {}", it.type_, it.message));
    let ends = decision.effects.iter().filter_map(|it| match it {
        Effect::EndAttempt { ending, .. } => Some(ending.message.clone()),
        _ => None,
    });
    conditions.chain(ends).collect::<Vec<_>>().join("\n")
}

/// What is true of every decision.
pub fn always(given: &Given, decision: &Decision) -> Vec<String> {
    let mut failures = Vec::new();
    if format!("{:?}", given.decide()) != format!("{decision:?}") {
        failures.push("the same situation should give the same decision".to_owned());
    }
    let changes = decision.effects.iter().filter(|it| !matches!(it, Effect::StopWorker { .. })).count();
    if changes > 1 {
        failures.push(format!("more than one change: {:?}", decision.effects));
    }
    let again = given.clone().written().decide();
    if changes == 0 && again.status != decision.status {
        failures.push(format!(
            "once written, the status should stand:\n{:#?}\n{:#?}",
            decision.status, again.status
        ));
    }
    if changes == 0 && !again.notices.is_empty() {
        failures.push(format!("told twice: {:?}", again.notices));
    }
    for effect in &decision.effects {
        if let Effect::EndAttempt { then: Then::Finish(finish), .. } = effect
            && (finish.message.len() > Limits::FINISH_MESSAGE_BYTES || finish.message.contains('\0'))
        {
            failures.push(format!("an end that no store takes, or no status: {:?}", finish.message));
        }
    }
    failures.extend(malformed(&decision.status));
    failures
}

/// What the kind's schema would refuse, or kstatus would misread.
fn malformed(status: &AgentRunStatus) -> Vec<String> {
    let mut failures = Vec::new();
    let history = status.recovery.as_ref().map(|it| it.history.as_slice()).unwrap_or_default();
    if history.len() > 10 || history.iter().any(|it| it.message.as_ref().is_some_and(|it| it.len() > 512)) {
        failures.push(format!("too much history: {history:?}"));
    }
    let result = status.result.as_ref().and_then(|it| it.message.as_deref());
    if result.is_some_and(|it| it.chars().count() > Limits::FINISH_MESSAGE_BYTES) {
        failures.push(format!("too long a result: {result:?}"));
    }
    for condition in &status.conditions {
        let same = status.conditions.iter().filter(|it| it.type_ == condition.type_).count();
        let is_word = condition.reason.parse::<Reason>().is_ok();
        let whole = condition.last_transition_time.0.subsec_nanosecond() == 0;
        let absent_when_false = ["Reconciling", "Stalled"].contains(&condition.type_.as_str());
        if same != 1 || !is_word || !whole || (absent_when_false && condition.status != "True") {
            failures.push(format!("malformed: {condition:?}"));
        }
    }
    let is = |kind: Is| find_condition(&status.conditions, kind).map(|it| it.status.as_str());
    let ready_and_not = is(Is::Ready) == Some("True") && (is(Is::Stalled).or(is(Is::Reconciling))).is_some();
    if ready_and_not {
        failures.push("Ready together with Stalled or Reconciling".to_owned());
    }
    failures
}
