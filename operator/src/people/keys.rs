//! The keys by which payloads are encrypted.

use anyhow::{Context as _, bail};
use dalsegno_store::Shredded;

use super::latest;
use crate::config::{RunName, StoreArgs};

/// Wraps the data keys of all runs by the current key.
///
/// # Errors
///
/// No keys are named, one that still wraps a data key is not there, or the store does not answer.
pub async fn rewrap(store: &StoreArgs) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    match store.rewrap_keys().await.context("wrapping the data keys")? {
        0 => println!("the current key wraps all data keys"),
        count => println!("data keys that the current key wraps now, and another one did before: {count}"),
    }
    Ok(())
}

/// Deletes the data key of a run that is over.
///
/// # Errors
///
/// There is no such run, it lives, or the store does not answer.
pub async fn shred(store: &StoreArgs, name: &RunName, reason: &str, by: &str) -> anyhow::Result<()> {
    let store = store.open_beside().await?;
    let run = latest(store.as_ref(), name).await?;
    match store.shred(run.id, reason, by).await.context("shredding the run")? {
        Shredded::Done => {
            println!(
                "shredded: the data key of run {}/{} (id {}) is deleted",
                run.namespace, run.name, run.id
            );
            println!("a gateway that has read it lately may use it for another minute");
            println!(
                "a backup of the database from before holds it still, and so does a replica that lags behind"
            );
        }
        Shredded::Live => {
            bail!("the run lives, and its worker would write what nobody can read: cancel it first")
        }
        Shredded::NotFound => bail!("the run is gone"),
    }
    Ok(())
}
