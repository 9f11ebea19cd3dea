//! What an agent with `checkpointing: External` does not support: fields that would have no effect, or would promise what
//! only the gateway's checkpoints can keep.
//!
//! One table has them. The API server refuses them in a definition and in a run with an inline agent, by rules of the
//! schema. It cannot see the definition of a run with `agentRef`, so the operator looks there and holds the run.

use kube::core::{Rule, validate};
use schemars::Schema;
use serde::Serialize;
use serde_json::Value as Json;

use crate::agentdefinition::RunDefaults;
use crate::agentrun::AgentRunSpec;

/// A field that is not supported.
struct Unsupported {
    /// Its path below `spec` of a run, or below `defaults` of a definition.
    path: &'static str,
    /// The value that is refused. `None`: each.
    value: Option<&'static str>,
    /// What to do instead.
    instead: &'static str,
}

/// The only one that the defaults of a definition do not have.
static OF_RUNS: Unsupported =
    field("resumeFrom", "a fork copies checkpoints of the store, and this agent has none there");

static OF_RUNS_AND_DEFAULTS: [Unsupported; 11] = [
    field("liveness", "the worker sends no heartbeats and does not attach: use the probes of its container"),
    field("suspend", "a suspend deletes the pod: set terminationGracePeriodSeconds in the template"),
    field("limits.turns", "only activeSeconds is counted, because the worker reports no turns"),
    field("limits.tokens", "only activeSeconds is counted, because the worker reports no tokens"),
    field("limits.costMicroUSD", "only activeSeconds is counted, because the worker reports no cost"),
    value("fourEyes", "true", "the worker cannot ask for approvals"),
    field("checkpoints", "the store has no checkpoints of this agent"),
    field("retention.keepLast", "the store has no checkpoints of this agent"),
    value("recovery.onSameCheckpoint", "Rewind", "the store has no checkpoints of this agent"),
    value("recovery.onCorruptCheckpoint", "LastGood", "the store has no checkpoints of this agent"),
    value("onPriorRun", "Adopt", "nothing fences the worker of the earlier run, which may still run"),
];

const fn field(path: &'static str, instead: &'static str) -> Unsupported {
    Unsupported { path, value: None, instead }
}

const fn value(path: &'static str, value: &'static str, instead: &'static str) -> Unsupported {
    Unsupported { path, value: Some(value), instead }
}

impl Unsupported {
    fn of_runs() -> impl Iterator<Item = &'static Self> {
        [&OF_RUNS].into_iter().chain(&OF_RUNS_AND_DEFAULTS)
    }

    /// The field below a place, and its value if only that is refused.
    fn name(&self, place: &str) -> String {
        let place = if place.is_empty() { String::new() } else { format!("{place}.") };
        let value = self.value.map_or_else(String::new, |value| format!(": {value}"));
        format!("{place}{}{value}", self.path)
    }

    /// Whether these settings, as JSON, have the field with a value that is refused.
    fn is_in(&self, settings: &Json) -> bool {
        match settings.pointer(&format!("/{}", self.path.replace('.', "/"))) {
            None | Some(Json::Null) => false,
            Some(Json::String(found)) => self.value.is_none_or(|value| value == found),
            Some(Json::Bool(found)) => self.value.is_none_or(|value| (value == "true") == *found),
            Some(_) => self.value.is_none(),
        }
    }
}

/// The fields of a run and of its definition's defaults that an agent with `checkpointing: External` does not support, each
/// with what to do instead.
pub fn unsupported_fields(spec: &AgentRunSpec, defaults: &RunDefaults) -> Vec<String> {
    let found = |place: &'static str, settings: Json| {
        Unsupported::of_runs()
            .filter(move |it| it.is_in(&settings))
            .map(move |it| format!("{} ({})", it.name(place), it.instead))
    };
    found("spec", as_json(spec)).chain(found("defaults", as_json(defaults))).collect()
}

fn as_json(settings: &impl Serialize) -> Json {
    serde_json::to_value(settings).expect("settings are plain JSON")
}

/// Adds the rules for a definition: to its defaults, and that `checkpointing` stays as it is.
pub(crate) fn add_definition_rules(schema: &mut Schema) {
    add_rules(schema, "", "defaults", OF_RUNS_AND_DEFAULTS.iter());
}

/// Adds the rules for a run with an inline agent.
pub(crate) fn add_run_rules(schema: &mut Schema) {
    add_rules(schema, "agent", "", Unsupported::of_runs());
    let rule = Rule::new(
        "!has(self.rewind) || !has(self.agent) || !has(self.agent.checkpointing) || \
                          self.agent.checkpointing != 'External'",
    )
    .message("checkpointing: External does not support rewind: the store has no checkpoints of this agent")
    .field_path(".rewind");
    validate(schema, rule).expect("a rule is plain JSON");
}

/// Adds the rules to the schema of a spec. `agent` and `settings` are the fields that hold the agent and the settings; empty:
/// the spec itself does.
fn add_rules(
    schema: &mut Schema,
    agent: &str,
    settings: &str,
    fields: impl Iterator<Item = &'static Unsupported>,
) {
    let checkpointing = [agent, "checkpointing"].map(str::to_owned).into_iter().filter(|it| !it.is_empty());
    let checkpointing = checkpointing.collect::<Vec<_>>().join(".");
    let is_internal = format!("!({} && self.{checkpointing} == 'External')", has(&checkpointing));
    for field in fields {
        let path =
            if settings.is_empty() { field.path.to_owned() } else { format!("{settings}.{}", field.path) };
        let is_value = match field.value {
            None => String::new(),
            Some("true") => format!(" && self.{path} == true"),
            Some(value) => format!(" && self.{path} == '{value}'"),
        };
        let name = field.name(settings);
        let message = format!("checkpointing: External does not support {name}: {}", field.instead);
        let rule = Rule::new(format!("{is_internal} || !({}{is_value})", has(&path)))
            .message(message.as_str())
            .field_path(format!(".{path}"));
        validate(schema, rule).expect("a rule is plain JSON");
    }
    let before = format!("has(oldSelf.{checkpointing})");
    let owner = if agent.is_empty() {
        String::new()
    } else {
        format!("!has(self.{agent}) || !has(oldSelf.{agent}) || ")
    };
    let rule = Rule::new(format!(
        "{owner}(has(self.{checkpointing}) ? self.{checkpointing} : 'Gateway') == \
         ({before} ? oldSelf.{checkpointing} : 'Gateway')"
    ))
    .message("checkpointing cannot change, because runs are under way: create another definition or run")
    .field_path(format!(".{checkpointing}"));
    validate(schema, rule).expect("a rule is plain JSON");
}

/// CEL: whether each part of the path is set.
fn has(path: &str) -> String {
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| format!("has(self.{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}
