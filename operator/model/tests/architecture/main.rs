//! The shape of the whole workspace, checked by what Cargo knows of it and by its sources: no crate uses a crate of a higher
//! floor, no files inside a crate import one another in a circle, no private word is back as a name, and no statement takes
//! all columns of a table. The test is in this crate because the crate builds in seconds.

#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

mod circles;
mod crate_files;
mod documentation;
mod floors;
mod paths;
mod private_words;
mod source;
mod sql;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A crate of the workspace.
struct Package {
    name: String,
    /// File that its library or program begins with.
    roots: Vec<PathBuf>,
    /// Crates of the workspace that it needs outside of its tests.
    needs: Vec<String>,
}

/// The crates of the workspace, from `cargo metadata`.
fn packages() -> Vec<Package> {
    let manifest = workspace().join("Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

fn package(json: &Value) -> Package {
    let of = |name: &str| json[name].as_array().unwrap().iter();
    let is_main = |target: &&Value| {
        let kinds = target["kind"].as_array().unwrap();
        kinds.iter().any(|kind| kind == "lib" || kind == "bin")
    };
    let is_ours = |dependency: &&Value| !dependency["path"].is_null() && dependency["kind"] != "dev";
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Package {
        name: text(&json["name"]),
        roots: of("targets").filter(is_main).map(|target| text(&target["src_path"]).into()).collect(),
        needs: of("dependencies").filter(is_ours).map(|dependency| text(&dependency["name"])).collect(),
    }
}

/// The folder of the whole workspace.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}
