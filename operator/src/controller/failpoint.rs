//! Aborts the process at chosen steps, at each of them once. Tests use it to prove that a crash between any two calls loses
//! nothing.

use std::path::{Path, PathBuf};

/// Aborts before or after the first effect of each given name.
#[derive(Debug, Default)]
pub struct Failpoint {
    at: Vec<String>,
    folder: PathBuf,
    pod_name: String,
}

impl Failpoint {
    /// Parses `before:EFFECT` and `after:EFFECT`, with commas between them. A marker file in `folder` for each of them
    /// records that this pod has aborted there, so that the restarted container does not abort there again.
    pub fn new(at: Option<String>, folder: &Path, pod_name: &str) -> Self {
        let at = at.iter().flat_map(|points| points.split(',')).map(str::to_owned).collect();
        Self { at, folder: folder.to_owned(), pod_name: pod_name.to_owned() }
    }

    /// Aborts if this is a chosen step and its marker does not exist yet.
    pub fn pass(&self, when: &str, effect: &str) {
        let is_here = |at: &&String| at.split_once(':') == Some((when, effect));
        let Some(at) = self.at.iter().find(is_here) else { return };
        let marker = self.folder.join(format!("died-{when}-{effect}-{}", self.pod_name));
        if !marker.exists() && std::fs::write(&marker, at).is_ok() {
            tracing::warn!(at, "aborting at the failpoint");
            std::process::abort();
        }
    }
}
