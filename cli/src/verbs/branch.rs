//! `rewind` and `fork`: back to an earlier turn, in the run itself or in a new one.
//!
//! A rewind names the head that was the latest one when the run was read. It is refused if another rewind has undone that
//! head meanwhile. Turns that the run commits meanwhile do not refuse it: they are undone too.

use dalsegno_crds::AgentRun;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, Resource as _};
use serde_json::{Map, Value, json};

use crate::args::{ForkArgs, RewindArgs};
use crate::confirm::confirm;
use crate::failure::{Exit, Failure, Result};
use crate::output::{Format, Output};
use crate::runs::{self, ReadRun};
use crate::session::{Session, reason_annotation};

/// Fields of a spec that belong to one run: a fork does not inherit them.
const OWN_FIELDS: [&str; 4] = ["operatingMode", "rewind", "resumeFrom", "onPriorRun"];

/// Requests a rewind.
pub async fn rewind(session: &Session, args: &RewindArgs, output: &mut Output) -> Result {
    let read = runs::read(session, &args.run).await?;
    let generation = next_generation(&read.object.data);
    let run = read.understood(session)?;
    runs::refuse_ended(&run)?;
    let (turn, head) = head(&run, session)?;
    if args.to_turn >= turn {
        return Err(Failure::new(
            Exit::Refused,
            format!("the run {} stands after turn {turn}, and a rewind goes back", args.run),
            format!("choose an earlier turn: `kubectl dalsegno turns {}{}`", args.run, session.options()),
        ));
    }
    if !args.yes {
        let undone = if turn - args.to_turn == 1 {
            format!("turn {turn}")
        } else {
            format!("turns {} to {turn}", args.to_turn + 1)
        };
        confirm(
            &format!("Undo {undone} of {}/{}?", session.namespace, args.run),
            "repeat the command with --yes",
        )?;
    }
    let rewind = json!({
        "generation": generation,
        "toTurn": args.to_turn,
        "ifHead": head,
        "acceptEffects": args.accept_effects,
    });
    let change =
        json!({ "metadata": reason_annotation(args.reason.as_deref()), "spec": { "rewind": rewind } });
    let patched = patch_untyped(session, &args.run, &change).await?;
    let text = format!(
        "A rewind of {0} to turn {1} is requested. A call with an effect in an undone turn refuses it until you name the call \
         by --accept-effect.\nSee it:  kubectl dalsegno status {0}{2}",
        args.run,
        args.to_turn,
        session.options()
    );
    print_object(output, &patched, &text)
}

/// Creates a run that begins with the state of another one.
pub async fn fork(session: &Session, args: &ForkArgs, output: &mut Output) -> Result {
    let ReadRun { object, .. } = runs::read(session, &args.run).await?;
    let manifest = fork_manifest(&object, args)?;
    let fork: DynamicObject = serde_json::from_value(manifest).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("the new AgentRun cannot be written: {error}"),
            "create it by hand",
        )
    })?;
    let created = api(session).create(&PostParams::default(), &fork).await;
    let created = created.map_err(|error| match &error {
        kube::Error::Api(status) if status.is_already_exists() => Failure::new(
            Exit::Refused,
            format!("there is an AgentRun {:?} already", args.new_name),
            "choose another name for the fork",
        ),
        error => Failure::of_api("creating the AgentRun", error),
    })?;
    let not_known = "the AgentRuns of this cluster have no field `spec.resumeFrom`";
    refuse_dropped(&created, "resumeFrom", not_known)?;
    let text = format!(
        "The run {0} starts from {1}.\nSee it:  kubectl dalsegno status {0}{2}",
        args.new_name,
        args.run,
        session.options()
    );
    print_object(output, &created, &text)
}

/// Turn and hash of the latest checkpoint.
fn head(run: &AgentRun, session: &Session) -> Result<(i32, String)> {
    let checkpoint = run.status.as_ref().and_then(|it| it.checkpoint.clone());
    let known = checkpoint.and_then(|it| Some((it.turn, it.content_hash?)));
    known.ok_or_else(|| {
        let name = run.name_any();
        Failure::new(
            Exit::Refused,
            format!("the run {name} has no checkpoint yet, so there is nothing to undo"),
            format!("wait for one with `kubectl dalsegno wait {name}{} --for turn=1`", session.options()),
        )
    })
}

/// A generation that no rewind of this run has had.
fn next_generation(object: &Value) -> i64 {
    let requested = object["spec"]["rewind"]["generation"].as_i64();
    let observed = object["status"]["rewind"]["observedGeneration"].as_i64();
    requested.max(observed).unwrap_or_default().saturating_add(1)
}

/// The AgentRun of a fork: what the parent runs, with a status of its own.
fn fork_manifest(parent: &DynamicObject, args: &ForkArgs) -> Result<Value> {
    let mut spec = parent.data["spec"].as_object().cloned().unwrap_or_else(Map::new);
    for field in OWN_FIELDS {
        spec.remove(field);
    }
    if let Some(recovery) = spec.get_mut("recovery").and_then(Value::as_object_mut) {
        recovery.remove("resetGeneration");
    }
    let mut from = json!({ "runName": args.run, "acceptEffects": args.accept_effects });
    if let Some(turn) = args.turn {
        from["turn"] = turn.into();
    }
    spec.insert("resumeFrom".to_owned(), from);
    let mut metadata = match &args.reason {
        Some(reason) => reason_annotation(Some(reason)),
        None => json!({}),
    };
    metadata["name"] = args.new_name.as_str().into();
    metadata["labels"] = json!(parent.labels());
    Ok(json!({
        "apiVersion": AgentRun::api_version(&()), "kind": AgentRun::kind(&()), "metadata": metadata, "spec": spec,
    }))
}

fn api(session: &Session) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<AgentRun>(&());
    Api::namespaced_with(session.client.clone(), &session.namespace, &resource)
}

async fn patch_untyped(session: &Session, name: &str, change: &Value) -> Result<DynamicObject> {
    let patched = api(session).patch(name, &Session::patch_params(), &kube::api::Patch::Merge(change)).await;
    let patched = patched.map_err(|error| Failure::of_api("changing the AgentRun", &error))?;
    refuse_dropped(&patched, "rewind", "the AgentRuns of this cluster have no field `spec.rewind`")?;
    Ok(patched)
}

/// The API server drops fields that a kind does not have.
fn refuse_dropped(object: &DynamicObject, field: &str, what: &str) -> Result {
    if object.data["spec"].get(field).is_some() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Refused,
        what,
        "install the version of Dal Segno that this plugin belongs to; what was created without the field is to be deleted",
    ))
}

fn print_object(output: &mut Output, object: &DynamicObject, text: &str) -> Result {
    match output.format {
        Format::Json | Format::Yaml => output.document(object),
        Format::Name => {
            output.print(&runs::full_name(object));
            Ok(())
        }
        Format::Text | Format::Wide => {
            output.print(text);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_runs_the_same_and_inherits_no_request_to_its_parent() {
        let parent: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
            "metadata": { "name": "nightly", "namespace": "shop", "labels": { "team": "night" }, "uid": "u",
                          "annotations": { "dalsegno.dev/created-by": "ann" } },
            "spec": { "agentRef": { "name": "nightly" }, "input": { "n": 1 }, "operatingMode": "Suspended",
                      "rewind": { "generation": 2 }, "recovery": { "resetGeneration": 3, "maxDisruptions": 5 } },
            "status": { "summary": "Held" },
        }))
        .unwrap();
        let args = ForkArgs {
            run: "nightly".into(),
            new_name: "again".into(),
            turn: Some(7),
            accept_effects: vec!["pay".into()],
            reason: Some("try another model".into()),
        };
        let manifest = fork_manifest(&parent, &args).unwrap();
        assert_eq!(
            manifest,
            json!({
                "apiVersion": "dalsegno.dev/v1alpha1", "kind": "AgentRun",
                "metadata": { "name": "again", "labels": { "team": "night" },
                              "annotations": { "dalsegno.dev/reason": "try another model" } },
                "spec": { "agentRef": { "name": "nightly" }, "input": { "n": 1 }, "recovery": { "maxDisruptions": 5 },
                          "resumeFrom": { "runName": "nightly", "turn": 7, "acceptEffects": ["pay"] } },
            })
        );
    }

    #[test]
    fn a_rewind_has_a_generation_that_none_had_before() {
        for (object, next) in [
            (json!({}), 1),
            (json!({ "spec": { "rewind": { "generation": 4 } } }), 5),
            (
                json!({ "spec": { "rewind": { "generation": 1 } }, "status": { "rewind": { "observedGeneration": 6 } } }),
                7,
            ),
        ] {
            assert_eq!(next_generation(&object), next);
        }
    }
}
