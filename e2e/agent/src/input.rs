//! The agent's input. The README describes the fields.

use std::time::{Duration, SystemTime};
use std::{env, fs};

use anyhow::{Context, bail};
use dalsegno_sdk::{Class, FinishOutcome, OnTimeout, Policy, WaitFor, WaitKind};
use serde::Deserialize;
use serde_json::Value;

/// The run's input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Input {
    pub ledger: String,
    pub turns: i32,
    pub turn_seconds: f64,
    pub heartbeat: bool,
    pub state_bytes: usize,
    pub record_bytes: usize,
    pub secret: String,
    pub channels: bool,
    pub on_term: OnTerm,
    pub call_policy: Policy,
    pub one_call: bool,
    pub finish_outcome: FinishOutcome,
    pub finish_separately: bool,
    pub never_attach: bool,
    pub ignore_cancel: bool,
    pub ignore_suspend: bool,
    pub ignore_limit: bool,
    pub messages: bool,
    pub waits: Vec<WaitEntry>,
    pub script: Vec<ScriptEntry>,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            ledger: String::new(),
            turns: 20,
            turn_seconds: 0.3,
            heartbeat: true,
            state_bytes: 0,
            record_bytes: 0,
            secret: String::new(),
            channels: false,
            on_term: OnTerm::Default,
            call_policy: Policy::RetrySameKey,
            one_call: false,
            finish_outcome: FinishOutcome::Succeeded,
            finish_separately: false,
            never_attach: false,
            ignore_cancel: false,
            ignore_suspend: false,
            ignore_limit: false,
            messages: false,
            waits: Vec::new(),
            script: Vec::new(),
        }
    }
}

impl Input {
    /// Reads the mounted file instead of using the SDK, because an agent that never attaches needs its input too.
    pub fn read() -> anyhow::Result<Self> {
        let path = env::var(dalsegno_sdk::env::INPUT_FILE).context(dalsegno_sdk::env::INPUT_FILE)?;
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        serde_json::from_str(&text).context("reading the run's input")
    }

    /// The actions at this point, in the script's order.
    pub fn actions(&self, attempt: i32, turn: i32, at: TurnPoint) -> impl Iterator<Item = &Action> {
        let applies = move |entry: &&ScriptEntry| {
            entry.at == at
                && entry.attempt.is_none_or(|wanted| wanted == attempt)
                && entry.turn.is_none_or(|wanted| wanted == turn)
        };
        self.script.iter().filter(applies).map(|entry| &entry.action)
    }

    /// The waits after this turn, in the input's order, each with its id.
    pub fn waits_after(&self, turn: i32) -> impl Iterator<Item = (String, &WaitEntry)> {
        let applies = move |entry: &&WaitEntry| {
            let is_its_turn = entry.after_turn.is_none_or(|wanted| wanted == turn);
            turn > 0 && is_its_turn && entry.every.is_none_or(|n| turn % n == 0)
        };
        self.waits
            .iter()
            .filter(applies)
            .enumerate()
            .map(move |(number, entry)| (format!("after-{turn}-{}", number + 1), entry))
    }

    /// How long the script's first freeze lasts, if there is one.
    pub fn freeze_time(&self) -> Option<Duration> {
        self.script.iter().find_map(|entry| match entry.action {
            Action::Freeze(time) => Some(time),
            _ => None,
        })
    }

    /// Whether the script loses an answer.
    pub fn loses_answers(&self) -> bool {
        self.script.iter().any(|entry| matches!(entry.action, Action::LoseAnswer))
    }
}

/// How the agent handles SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTerm {
    Default,
    Exit143,
    Exit1,
    Ignore,
    Commit,
}

/// One entry of the script. Without an attempt or a turn it applies to all of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptEntry {
    attempt: Option<i32>,
    turn: Option<i32>,
    at: TurnPoint,
    #[serde(rename = "do")]
    action: Action,
}

/// A wait after a turn. Without `afterTurn` and `every` there is one after each turn.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitEntry {
    after_turn: Option<i32>,
    every: Option<i32>,
    kind: WaitKind,
    #[serde(default)]
    seconds: f64,
    topic: Option<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    proposal: Value,
    deadline_seconds: Option<u64>,
    #[serde(default)]
    on_timeout: OnTimeout,
    /// Whether the turn's commit parks on the wait, which is opened before it.
    #[serde(default)]
    pub in_commit: bool,
}

impl WaitEntry {
    /// The wait, for the SDK. Times count from now, and the first one that is sent stays.
    pub fn wait(&self) -> dalsegno_sdk::Result<WaitFor> {
        let time = SystemTime::now() + Duration::from_secs_f64(self.seconds);
        let mut wait = match self.kind {
            WaitKind::Approval => WaitFor::approval(&self.title, &self.proposal)?,
            WaitKind::Until => WaitFor::until(time),
            WaitKind::Message => WaitFor::message(),
            WaitKind::RateLimit => WaitFor::rate_limit("model").reset_time(time),
        };
        if let Some(topic) = &self.topic {
            wait = wait.topic(topic);
        }
        Ok(match self.deadline_seconds {
            Some(seconds) => wait.deadline(Duration::from_secs(seconds), self.on_timeout),
            None => wait,
        })
    }
}

/// A point in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TurnPoint {
    Start,
    AfterClaim,
    AfterTool,
    AfterCall,
    BeforeCommit,
    AfterCommit,
    AfterFinish,
}

/// What the agent does at a point of a turn.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Action {
    Exit(i32),
    Oom,
    Hang,
    Spin,
    Freeze(Duration),
    Report(Class, String),
    LoseAnswer,
}

impl TryFrom<String> for Action {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        Ok(match text.split_once(':').unwrap_or((&text, "")) {
            ("exit", code) => Self::Exit(code.parse().context("exit:N takes a number")?),
            ("oom", "") => Self::Oom,
            ("hang", "") => Self::Hang,
            ("spin", "") => Self::Spin,
            ("freeze", seconds) => {
                Self::Freeze(Duration::from_secs(seconds.parse().context("freeze:N takes whole seconds")?))
            }
            ("fatal", message) => Self::Report(Class::Fatal, message.to_owned()),
            ("selfReport", report) => {
                let (class, message) = report.split_once(':').unwrap_or((report, "reported by itself"));
                let class = match class {
                    "crash" => Class::Crash,
                    "disruption" => Class::Disruption,
                    _ => bail!("a worker cannot report the class {class:?}"),
                };
                Self::Report(class, message.to_owned())
            }
            ("loseAnswer", "") => Self::LoseAnswer,
            _ => bail!("{text:?} is not an action"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input(script: serde_json::Value) -> serde_json::Result<Input> {
        serde_json::from_value(json!({"ledger": "http://ledger:8090", "script": script}))
    }

    #[test]
    fn an_entry_without_attempt_or_turn_applies_to_all() {
        let script = json!([
            {"attempt": 1, "turn": 3, "at": "afterCommit", "do": "exit:1"},
            {"turn": 3, "at": "afterCommit", "do": "fatal:no: more"},
            {"at": "start", "do": "freeze:20"},
            {"attempt": 9, "at": "start", "do": "selfReport:crash"},
            {"attempt": 9, "at": "start", "do": "selfReport:disruption:it: rains"},
        ]);
        let input = input(script).unwrap();
        let actions = |attempt, turn, at| input.actions(attempt, turn, at).cloned().collect::<Vec<_>>();
        let fatal = Action::Report(Class::Fatal, "no: more".to_owned());
        assert_eq!(actions(1, 3, TurnPoint::AfterCommit), [Action::Exit(1), fatal.clone()]);
        assert_eq!(actions(2, 3, TurnPoint::AfterCommit), [fatal]);
        assert_eq!(actions(7, 9, TurnPoint::Start), [Action::Freeze(Duration::from_secs(20))]);
        assert_eq!(actions(1, 4, TurnPoint::AfterCommit), []);
        let reports = [(Class::Crash, "reported by itself"), (Class::Disruption, "it: rains")];
        let reports = reports.map(|(class, message)| Action::Report(class, message.to_owned()));
        assert_eq!(actions(9, 1, TurnPoint::Start)[1..], reports);
        assert_eq!(input.freeze_time(), Some(Duration::from_secs(20)));
        assert!(!input.loses_answers());
    }

    #[test]
    fn a_wait_comes_after_one_turn_after_every_nth_turn_or_after_each() {
        let waits = json!([
            {"afterTurn": 4, "kind": "approval", "title": "Go on?", "deadlineSeconds": 9, "onTimeout": "Hold"},
            {"every": 2, "kind": "until", "seconds": 1.5, "inCommit": true},
            {"kind": "message", "topic": "go"},
        ]);
        let input: Input = serde_json::from_value(json!({ "waits": waits })).unwrap();
        let kinds = |turn| input.waits_after(turn).map(|(id, wait)| (id, wait.kind)).collect::<Vec<_>>();
        assert_eq!(kinds(1), [("after-1-1".to_owned(), WaitKind::Message)]);
        let both = [("after-2-1".to_owned(), WaitKind::Until), ("after-2-2".to_owned(), WaitKind::Message)];
        assert_eq!(kinds(2), both);
        assert_eq!((kinds(0).len(), kinds(4).len()), (0, 3));
        assert!(input.waits_after(4).all(|(_, wait)| wait.wait().is_ok()));
        assert!(serde_json::from_value::<Input>(json!({"waits": [{"kind": "weather"}]})).is_err());
    }

    #[test]
    fn an_unknown_action_point_or_field_is_an_error() {
        assert!(input(json!([{"at": "start", "do": "explode"}])).is_err());
        assert!(input(json!([{"at": "start", "do": "exit:one"}])).is_err());
        assert!(input(json!([{"at": "start", "do": "selfReport:weather"}])).is_err());
        assert!(input(json!([{"at": "noon", "do": "hang"}])).is_err());
        assert!(serde_json::from_value::<Input>(json!({"turn": 3})).is_err());
    }
}
