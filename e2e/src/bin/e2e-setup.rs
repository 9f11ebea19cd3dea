//! Installs what the stories need into the cluster of `KUBECONFIG`: `make` runs it before them.

use dalsegno_e2e::{Result, install, ctx};

#[tokio::main]
async fn main() -> Result {
    let (client, _) = test_context::clients().await?;
    install::set_up(&client).await?;
    println!(
        "installed: Dal Segno in {}, the ledger in {}",
        dalsegno_e2e::operator::NAMESPACE,
        install::TOOLS_NAMESPACE
    );
    Ok(())
}
