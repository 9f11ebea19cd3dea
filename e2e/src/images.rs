//! Images of the scripted agent that differ only in their digest.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::Context;

use crate::{Result, TestContext};

/// The environment variable with the path of the scripted agent's program.
const PROGRAM: &str = "DALSEGNO_E2E_AGENT";

/// An image in the cluster's registry.
#[derive(Clone, Debug)]
pub struct Image {
    /// The reference by tag. Another image may be pushed under the same tag.
    pub tagged: String,
    /// The reference by digest.
    pub by_digest: String,
    /// The digest, `sha256:…`.
    pub digest: String,
}

impl TestContext {
    /// Pushes the scripted agent as `NAMESPACE:tag`. A different `mark` gives a different digest.
    pub async fn push_image(&self, tag: &str, mark: &str) -> Result<Image> {
        let (cluster, name) = (self.cluster()?, &self.namespace);
        let root = env::temp_dir().join(format!("{name}-{}", uuid::Uuid::new_v4().simple()));
        let created = create_root(&root, mark);
        let rootfs = root.display().to_string();
        let tagged = format!("{name}:{tag}");
        let pushed = match created {
            Ok(()) => {
                let source = ["image", "push", &tagged, "--rootfs", &rootfs];
                let config = ["--entrypoint", "/e2e-agent", "--user", "65532"];
                cluster.command(&[&source[..], &config].concat()).await
            }
            Err(error) => Err(error),
        };
        fs::remove_dir_all(&root).context("removing the image's root")?;
        let by_digest = pushed?.trim().to_owned();
        let (repository, digest) = by_digest
            .split_once('@')
            .with_context(|| format!("{by_digest:?} is not a reference by digest"))?;
        Ok(Image { tagged: format!("{repository}:{tag}"), digest: digest.to_owned(), by_digest })
    }
}

fn create_root(root: &std::path::Path, mark: &str) -> Result {
    fs::create_dir_all(root)?;
    fs::write(root.join("mark"), mark)?;
    let program = program()?;
    fs::copy(&program, root.join("e2e-agent"))
        .with_context(|| format!("{} is not built: run `make images`", program.display()))?;
    Ok(())
}

/// The path of the scripted agent's program: the variable's value, or the directory of the test's own program.
fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os(PROGRAM) {
        return Ok(path.into());
    }
    let test = env::current_exe()?;
    let directory = test.parent().and_then(|deps| deps.parent());
    Ok(directory.context("a program without a directory")?.join("e2e-agent"))
}
