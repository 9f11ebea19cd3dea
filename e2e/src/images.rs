//! Images of the scripted agent that differ in nothing but their digest.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::Context;

use crate::{Cluster, Result};

/// Name of the environment variable with the path of the scripted agent's program.
const PROGRAM: &str = "DALSEGNO_E2E_AGENT";

/// An image in the cluster's registry.
#[derive(Clone, Debug)]
pub struct Image {
    /// By its tag, which may be pushed again.
    pub tagged: String,
    /// By its digest, which stays.
    pub by_digest: String,
    /// `sha256:…`.
    pub digest: String,
}

/// Pushes the scripted agent as `name:tag`. Another `mark` gives another digest.
///
/// # Errors
///
/// The agent is not built, or the registry does not take it.
pub async fn push(cluster: &Cluster, name: &str, tag: &str, mark: &str) -> Result<Image> {
    let root = env::temp_dir().join(format!("{name}-{}", uuid::Uuid::new_v4().simple()));
    let made = make_root(&root, mark);
    let root_arg = root.display().to_string();
    let tagged = format!("{name}:{tag}");
    let pushed = match made {
        Ok(()) => {
            let args = [
                "image",
                "push",
                &tagged,
                "--rootfs",
                &root_arg,
                "--entrypoint",
                "/e2e-agent",
                "--user",
                "65532",
            ];
            cluster.command(&args).await
        }
        Err(error) => Err(error),
    };
    fs::remove_dir_all(&root).context("removing the image's root")?;
    let by_digest = pushed?.trim().to_owned();
    let (repository, digest) =
        by_digest.split_once('@').with_context(|| format!("{by_digest:?} is no reference by digest"))?;
    Ok(Image { tagged: format!("{repository}:{tag}"), digest: digest.to_owned(), by_digest })
}

fn make_root(root: &std::path::Path, mark: &str) -> Result {
    fs::create_dir_all(root)?;
    fs::write(root.join("mark"), mark)?;
    let program = program()?;
    fs::copy(&program, root.join("e2e-agent"))
        .with_context(|| format!("{} is not built: run `make images`", program.display()))?;
    Ok(())
}

/// The scripted agent's program: where the variable says, or beside the stories' own programs.
fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os(PROGRAM) {
        return Ok(path.into());
    }
    let stories = env::current_exe()?;
    let directory = stories.parent().and_then(|deps| deps.parent());
    Ok(directory.context("a program without a directory")?.join("e2e-agent"))
}
