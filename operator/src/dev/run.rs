//! The run of a laptop: the AgentRun that a person would have applied, and its input, which is kept.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_crds::{AgentRun, AgentRunSpec, OnPriorRun, Recovery};
use dalsegno_store::{Lifecycle, RunRecord, Store};
use serde_json::Value;
use uuid::Uuid;

use crate::config::DevArgs;

/// The only namespace.
pub const NAMESPACE: &str = "dev";

/// The run that goes on: the latest of this name that was not given up.
///
/// # Errors
///
/// The store does not answer.
pub async fn find(store: &dyn Store, name: &str) -> anyhow::Result<Option<RunRecord>> {
    let runs = store.find(NAMESPACE, name).await.context("looking for the run")?;
    Ok(runs.into_iter().find(|it| matches!(it.lifecycle, Lifecycle::Live | Lifecycle::Finished)))
}

/// The AgentRun, for the row that was found or as a new one. To run it again is a person's word, and as good as a
/// higher `recovery.resetGeneration`: one fresh budget.
pub fn object(args: &DevArgs, input: Option<Value>, found: Option<&RunRecord>) -> AgentRun {
    let spec = AgentRunSpec {
        input,
        recovery: found.map(|row| Recovery {
            reset_generation: Some(row.observed_reset_generation + 1),
            ..Recovery::default()
        }),
        // What stands in the way was found above, unless it is to be given up.
        on_prior_run: Some(OnPriorRun::Ignore),
        ..AgentRunSpec::default()
    };
    let mut run = AgentRun::new(&args.name, spec);
    run.metadata.namespace = Some(NAMESPACE.to_owned());
    run.metadata.uid = Some(found.map_or_else(|| Uuid::new_v4().to_string(), |row| row.object_uid.clone()));
    run.metadata.generation = Some(1);
    run
}

/// The input: of a new run, the file that is named; of one that goes on, the one it was begun with.
///
/// # Errors
///
/// The file cannot be read or is no JSON, or the run was begun with another one.
pub fn input(args: &DevArgs, goes_on: bool) -> anyhow::Result<Option<Value>> {
    let kept = args.dir.join(format!("{}.input.json", args.name));
    let given = args.input.as_deref().map(read).transpose()?;
    if goes_on {
        let begun_with = if kept.exists() { Some(read(&kept)?) } else { None };
        if given.is_some() && given != begun_with {
            bail!(
                "the run {NAMESPACE}/{} was begun with another input, and an input never changes: --fresh begins a new \
                 run, --name another one",
                args.name
            );
        }
        return Ok(begun_with);
    }
    match &given {
        Some(value) => fs::write(&kept, value.to_string()).context("keeping the input")?,
        None if kept.exists() => fs::remove_file(&kept).context("forgetting the input of an earlier run")?,
        None => {}
    }
    Ok(given)
}

fn read(file: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(file).with_context(|| format!("reading the input {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("the input {} is no JSON", file.display()))
}
