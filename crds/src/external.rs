//! What an agent with `checkpointing: External` does not support: fields that would have no effect, or would promise what
//! only the gateway's checkpoints can keep.
//!
//! One table has them. The API server refuses them in a definition and in a run with an inline agent, by rules of the
//! schema. It cannot see the definition of a run with `agentRef`, so the operator looks there and holds the run.

use kube::core::{Rule, validate};
use schemars::Schema;

use crate::agentdefinition::RunDefaults;
use crate::agentrun::AgentRunSpec;
use crate::policies::{OnCorruptCheckpoint, OnPriorRun, OnSameCheckpoint};

/// A field that is not supported.
struct Unsupported {
    /// Its path below `spec` of a run, or below `defaults` of a definition.
    path: &'static str,
    /// The value that is refused. `None`: each.
    value: Option<&'static str>,
    /// What to do instead.
    instead: &'static str,
    /// Whether a run sets it, by itself.
    in_run: fn(&AgentRunSpec) -> bool,
    /// Whether the defaults of a definition set it. `None`: defaults have no such field.
    in_defaults: Option<fn(&RunDefaults) -> bool>,
}

/// A field that a run and the defaults of a definition have both.
macro_rules! both {
    ($path:literal, $value:expr, $instead:literal, $it:ident => $is_set:expr) => {
        Unsupported {
            path: $path,
            value: $value,
            instead: $instead,
            in_run: |$it| $is_set,
            in_defaults: Some(|$it| $is_set),
        }
    };
}

static UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        path: "resumeFrom",
        value: None,
        instead: "a fork copies checkpoints of the store, and this agent has none there",
        in_run: |it| it.resume_from.is_some(),
        in_defaults: None,
    },
    both!("liveness", None, "the worker sends no heartbeats and does not attach: use the probes of its container",
        it => it.liveness.is_some()),
    both!("suspend", None, "a suspend deletes the pod: set terminationGracePeriodSeconds in the template",
        it => it.suspend.is_some()),
    both!("limits.turns", None, "only activeSeconds is counted, because the worker reports no turns",
        it => it.limits.as_ref().is_some_and(|it| it.turns.is_some())),
    both!("limits.tokens", None, "only activeSeconds is counted, because the worker reports no tokens",
        it => it.limits.as_ref().is_some_and(|it| it.tokens.is_some())),
    both!("limits.costMicroUSD", None, "only activeSeconds is counted, because the worker reports no cost",
        it => it.limits.as_ref().is_some_and(|it| it.cost_micro_usd.is_some())),
    both!("fourEyes", Some("true"), "the worker cannot ask for approvals", it => it.four_eyes == Some(true)),
    both!("checkpoints", None, "the store has no checkpoints of this agent", it => it.checkpoints.is_some()),
    both!("retention.keepLast", None, "the store has no checkpoints of this agent",
        it => it.retention.as_ref().is_some_and(|it| it.keep_last.is_some())),
    both!("recovery.onSameCheckpoint", Some("'Rewind'"), "the store has no checkpoints of this agent",
        it => it.recovery.as_ref().and_then(|it| it.on_same_checkpoint) == Some(OnSameCheckpoint::Rewind)),
    both!("recovery.onCorruptCheckpoint", Some("'LastGood'"), "the store has no checkpoints of this agent",
        it => it.recovery.as_ref().and_then(|it| it.on_corrupt_checkpoint) == Some(OnCorruptCheckpoint::LastGood)),
    both!("onPriorRun", Some("'Adopt'"), "nothing fences the worker of the earlier run, which may still run",
        it => it.on_prior_run == Some(OnPriorRun::Adopt)),
];

/// The fields of a run and of its definition's defaults that an agent with `checkpointing: External` does not support, each
/// with what to do instead.
pub fn unsupported_fields(spec: &AgentRunSpec, defaults: &RunDefaults) -> Vec<String> {
    let describe = |place: &str, it: &Unsupported| {
        let value = it.value.map_or_else(String::new, |value| format!(": {}", value.trim_matches('\'')));
        format!("{place}.{}{value} ({})", it.path, it.instead)
    };
    let of_run = UNSUPPORTED.iter().filter(|it| (it.in_run)(spec)).map(|it| describe("spec", it));
    let in_defaults = |it: &&Unsupported| it.in_defaults.is_some_and(|is_set| is_set(defaults));
    let of_defaults = UNSUPPORTED.iter().filter(in_defaults).map(|it| describe("defaults", it));
    of_run.chain(of_defaults).collect()
}

/// Adds the rules for a definition: to its defaults, and that `checkpointing` stays as it is.
pub(crate) fn add_definition_rules(schema: &mut Schema) {
    let supported = UNSUPPORTED.iter().filter(|it| it.in_defaults.is_some());
    add_rules(schema, "", "defaults", supported);
}

/// Adds the rules for a run with an inline agent.
pub(crate) fn add_run_rules(schema: &mut Schema) {
    add_rules(schema, "agent", "", UNSUPPORTED.iter());
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
    for Unsupported { path, value, instead, .. } in fields {
        let path = if settings.is_empty() { (*path).to_owned() } else { format!("{settings}.{path}") };
        let is_value = value.map_or_else(String::new, |value| format!(" && self.{path} == {value}"));
        let shown = value.map_or_else(String::new, |value| format!(": {}", value.trim_matches('\'')));
        let message = format!("checkpointing: External does not support {path}{shown}: {instead}");
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
