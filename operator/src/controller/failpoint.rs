//! Aborts the process at a chosen step, once. Tests use it to prove that a crash between any two calls loses nothing.

use std::path::{Path, PathBuf};

/// Aborts before or after the first effect of a given name.
#[derive(Debug, Default)]
pub struct Failpoint {
    at: Option<String>,
    marker: PathBuf,
}

impl Failpoint {
    /// Parses `before:EFFECT` or `after:EFFECT`. A marker file in `folder` records that this pod has aborted there, so that
    /// the restarted container does not abort again.
    pub fn new(at: Option<String>, folder: &Path, pod_name: &str) -> Self {
        let name = at.as_deref().unwrap_or_default().replace(':', "-");
        Self { at, marker: folder.join(format!("died-{name}-{pod_name}")) }
    }

    /// Aborts if this is the chosen step and the marker does not exist yet.
    pub fn pass(&self, when: &str, effect: &str) {
        let Some(at) = &self.at else { return };
        if at.split_once(':') != Some((when, effect)) || self.marker.exists() {
            return;
        }
        if std::fs::write(&self.marker, at).is_ok() {
            tracing::warn!(at, "aborting at the failpoint");
            std::process::abort();
        }
    }
}
