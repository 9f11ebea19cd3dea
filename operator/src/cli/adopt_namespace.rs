//! `dalsegno adopt-namespace`: moves the runs of a namespace that was deleted and created again.

use anyhow::{Context as _, bail};
use dalsegno_core::text::counted;
use dalsegno_model::NamespaceAdoption;

use crate::config::{AdoptNamespaceArgs, Justification};
use crate::output::print_line;

/// Moves the runs of a namespace to the UID that it has now.
///
/// # Errors
///
/// The store is unavailable, or has no run of that namespace.
pub async fn run(args: AdoptNamespaceArgs) -> anyhow::Result<()> {
    let AdoptNamespaceArgs { store, old_uid, new_uid, justification: Justification { reason, by } } = args;
    let store = store.open_beside().await?;
    let adoption = NamespaceAdoption { from: old_uid, to: new_uid, actor: by, reason };
    let NamespaceAdoption { from, to, .. } = &adoption;
    match store.adopt_namespace(&adoption).await.context("moving the runs")? {
        0 => bail!("the store has no run of a namespace with UID {from}"),
        runs => {
            let runs = counted(runs, "run now belongs", "runs now belong");
            print_line!("{runs} to the namespace with UID {to}");
        }
    }
    Ok(())
}
