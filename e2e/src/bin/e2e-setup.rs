//! Installs what the tests need into the cluster of `KUBECONFIG`. The scripts of `hack/` run it before the tests.

use dalsegno_e2e::{Result, install, operator, test_context};

#[tokio::main]
async fn main() -> Result {
    let (client, _) = test_context::clients().await?;
    install::set_up(&client).await?;
    println!("installed: Dal Segno in {}, the ledger in {}", operator::NAMESPACE, install::TOOLS_NAMESPACE);
    Ok(())
}
