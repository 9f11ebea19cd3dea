//! The paths that docs/architecture.md names.

use crate::workspace;

/// Paths in back-ticks that do not exist, from any of the folders that the page starts from. Commands
/// and patterns do not count.
fn missing_paths(page: &str) -> Vec<String> {
    let quoted = page.split('`').skip(1).step_by(2);
    let paths = quoted
        .filter(|it| it.contains('/') && it.chars().all(|it| it.is_alphanumeric() || "/._-".contains(it)));
    let exists = |path: &str| {
        ["", "operator", "operator/core/src"].iter().any(|root| workspace().join(root).join(path).exists())
    };
    paths.filter(|path| !exists(path)).map(str::to_owned).collect()
}

#[test]
fn every_path_in_the_architecture_exists() {
    let page = std::fs::read_to_string(workspace().join("docs/architecture.md")).unwrap();
    assert_eq!(missing_paths(&page), [""; 0]);
}

#[test]
fn a_path_that_does_not_exist_is_found() {
    assert_eq!(
        missing_paths("`operator/src/main.rs`, `core/src/lib.rs` and `operator/src/gone.rs`"),
        ["operator/src/gone.rs"]
    );
}
