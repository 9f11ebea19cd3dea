//! Dying on purpose, once, at a chosen step: how the tests prove that any two calls may be torn apart.

use std::path::{Path, PathBuf};

/// Dies before or after the first effect of this name.
#[derive(Debug, Default)]
pub struct CrashPoint {
    at: Option<String>,
    marker: PathBuf,
}

impl CrashPoint {
    /// From `before:EFFECT` or `after:EFFECT`. A file in `folder` says that this pod has died so before: a container
    /// that starts again in it lives on.
    pub fn new(at: Option<String>, folder: &Path, pod_name: &str) -> Self {
        let name = at.as_deref().unwrap_or_default().replace(':', "-");
        Self { at, marker: folder.join(format!("died-{name}-{pod_name}")) }
    }

    /// Passes the point `when:effect`, or does not return.
    pub fn pass(&self, when: &str, effect: &str) {
        let Some(at) = &self.at else { return };
        if at.split_once(':') != Some((when, effect)) || self.marker.exists() {
            return;
        }
        if std::fs::write(&self.marker, at).is_ok() {
            tracing::warn!(at, "dying on purpose");
            std::process::abort();
        }
    }
}
