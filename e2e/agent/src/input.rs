//! What the agent is told to do; the README tells the words.

use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, bail};
use dalsegno_sdk::{Class, FinishOutcome, Policy};
use serde::Deserialize;

/// The run's input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Input {
    pub ledger: String,
    pub turns: i32,
    pub turn_seconds: f64,
    pub heartbeat: bool,
    pub state_bytes: usize,
    pub secret: String,
    pub channels: bool,
    pub on_term: OnTerm,
    pub call_policy: Policy,
    pub one_call: bool,
    pub finish_outcome: FinishOutcome,
    pub finish_separately: bool,
    pub never_attach: bool,
    pub ignore_cancel: bool,
    pub script: Vec<Line>,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            ledger: String::new(),
            turns: 20,
            turn_seconds: 0.3,
            heartbeat: true,
            state_bytes: 0,
            secret: String::new(),
            channels: false,
            on_term: OnTerm::Default,
            call_policy: Policy::RetrySameKey,
            one_call: false,
            finish_outcome: FinishOutcome::Succeeded,
            finish_separately: false,
            never_attach: false,
            ignore_cancel: false,
            script: Vec::new(),
        }
    }
}

impl Input {
    /// Reads the file that the operator mounts: an agent that never attaches needs its input too.
    pub fn read() -> anyhow::Result<Self> {
        let path = env::var(dalsegno_sdk::env::INPUT_FILE).context(dalsegno_sdk::env::INPUT_FILE)?;
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        serde_json::from_str(&text).context("reading the run's input")
    }

    /// What to do here, in the script's order.
    pub fn acts(&self, attempt: i32, turn: i32, at: At) -> impl Iterator<Item = &Act> {
        let here = move |line: &&Line| {
            line.at == at
                && line.attempt.is_none_or(|wanted| wanted == attempt)
                && line.turn.is_none_or(|wanted| wanted == turn)
        };
        self.script.iter().filter(here).map(|line| &line.act)
    }

    /// How long a freeze of the script lasts, if it has any.
    pub fn freeze(&self) -> Option<Duration> {
        self.script.iter().find_map(|line| match line.act {
            Act::Freeze(time) => Some(time),
            _ => None,
        })
    }

    /// Whether the script loses an answer.
    pub fn loses_answers(&self) -> bool {
        self.script.iter().any(|line| matches!(line.act, Act::LoseAnswer))
    }
}

/// What SIGTERM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTerm {
    Default,
    Exit143,
    Exit1,
    Ignore,
    Commit,
}

/// One line of the script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    attempt: Option<i32>,
    turn: Option<i32>,
    at: At,
    #[serde(rename = "do")]
    act: Act,
}

/// A point in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum At {
    Start,
    AfterClaim,
    AfterTool,
    AfterCall,
    BeforeCommit,
    AfterCommit,
    AfterFinish,
}

/// What happens there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Act {
    Exit(i32),
    Oom,
    Hang,
    Spin,
    Freeze(Duration),
    Report(Class, String),
    LoseAnswer,
}

impl TryFrom<String> for Act {
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
                    _ => bail!("{class:?} is no class that a worker reports of itself"),
                };
                Self::Report(class, message.to_owned())
            }
            ("loseAnswer", "") => Self::LoseAnswer,
            _ => bail!("{text:?} is nothing that can be done"),
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
    fn a_line_without_attempt_or_turn_applies_to_all() {
        let script = json!([
            {"attempt": 1, "turn": 3, "at": "afterCommit", "do": "exit:1"},
            {"turn": 3, "at": "afterCommit", "do": "fatal:no: more"},
            {"at": "start", "do": "freeze:20"},
            {"attempt": 9, "at": "start", "do": "selfReport:crash"},
            {"attempt": 9, "at": "start", "do": "selfReport:disruption:it: rains"},
        ]);
        let input = input(script).unwrap();
        let acts = |attempt, turn, at| input.acts(attempt, turn, at).cloned().collect::<Vec<_>>();
        let fatal = Act::Report(Class::Fatal, "no: more".to_owned());
        assert_eq!(acts(1, 3, At::AfterCommit), [Act::Exit(1), fatal.clone()]);
        assert_eq!(acts(2, 3, At::AfterCommit), [fatal]);
        assert_eq!(acts(7, 9, At::Start), [Act::Freeze(Duration::from_secs(20))]);
        assert_eq!(acts(1, 4, At::AfterCommit), []);
        let reports = [(Class::Crash, "reported by itself"), (Class::Disruption, "it: rains")];
        let reports = reports.map(|(class, message)| Act::Report(class, message.to_owned()));
        assert_eq!(acts(9, 1, At::Start)[1..], reports);
        assert_eq!(input.freeze(), Some(Duration::from_secs(20)));
        assert!(!input.loses_answers());
    }

    #[test]
    fn a_word_that_nobody_knows_is_an_error_and_not_a_quiet_agent() {
        assert!(input(json!([{"at": "start", "do": "explode"}])).is_err());
        assert!(input(json!([{"at": "start", "do": "exit:one"}])).is_err());
        assert!(input(json!([{"at": "start", "do": "selfReport:weather"}])).is_err());
        assert!(input(json!([{"at": "noon", "do": "hang"}])).is_err());
        assert!(serde_json::from_value::<Input>(json!({"turn": 3})).is_err());
    }
}
