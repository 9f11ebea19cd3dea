//! `dalsegno settle`: records the outcome of a call whose outcome is unknown.

use anyhow::{Context as _, bail, ensure};
use dalsegno_model::{Completed, Settle, SettledBy};
use dalsegno_protocol::{CallOutcome, Limits, RawValue, nesting};

use super::runs::find_last;
use crate::config::{Justification, SettleArgs, SettleOutcome};
use crate::output::print_line;

/// Settles a call.
///
/// # Errors
///
/// There is no such run or call, the call's outcome is known, or the result is not one that a worker could send.
pub async fn run(args: SettleArgs) -> anyhow::Result<()> {
    let SettleArgs { store, run, call, outcome, result, justification: Justification { reason, by } } = args;
    let result = result.map(std::fs::read_to_string).transpose().context("reading the result")?;
    let result = result.as_deref().map(parse_result).transpose()?;
    let store = store.open_beside().await?;
    let run = find_last(store.as_ref(), &run).await?;
    let outcome = match outcome {
        SettleOutcome::Completed => CallOutcome::Completed,
        SettleOutcome::Failed => CallOutcome::Failed,
    };
    let settle = Settle {
        run: run.id,
        by: SettledBy::Person(by),
        id: call.clone(),
        outcome,
        result,
        reason,
        audit_id: None,
    };
    match store.settle(&settle).await.context("settling the call")? {
        Completed::Ok => print_line!("settled: {call}"),
        Completed::Duplicate => print_line!("settled before, with the same outcome: {call}"),
        Completed::Conflict(why) => bail!("{call}: {why}"),
        Completed::TooLarge => bail!(
            "with this result the open calls of the run would be too large: give a result of at most {} bytes that says where \
             the full one is stored",
            Limits::SMALL_RESULT_BYTES
        ),
        Completed::NoSuchCall => bail!("the run has no call {call:?}; `dalsegno show --calls` lists them"),
        Completed::Finished => bail!("the run is over"),
        Completed::Fenced | Completed::NotFound => bail!("the store no longer has the run"),
    }
    Ok(())
}

/// Parses a tool's result. The limits are those of the gateway for workers, since the next attempt has to read it.
fn parse_result(text: &str) -> anyhow::Result<Box<RawValue>> {
    let (bytes, limit) = (text.len(), Limits::BODY_BYTES);
    ensure!(
        bytes <= limit,
        "the result has {bytes} bytes, the limit is {limit}: give a smaller result that says where the full one is stored"
    );
    // A worker's result is one level down, inside the request body.
    let limit = Limits::DEPTH - 1;
    ensure!(
        nesting::deeper_than(limit, text.as_bytes()).is_none(),
        "the result is nested deeper than {limit} levels: put the inner part into a string"
    );
    serde_json::from_str(text).context("the result is not JSON")
}
