//! The guide shows examples of the crate's documentation, which are compiled.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The documentation in a source file as a reader sees it: without the lines that rustdoc hides.
fn documentation(path: &str) -> String {
    let source = read(path);
    let lines = source.lines().filter_map(|line| line.strip_prefix("///"));
    let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
    lines.filter(|line| !line.starts_with("# ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_example_of_the_guide_is_one_of_the_documentation() {
    let documented = ["src/agent.rs", "src/space.rs"].map(documentation).join("\n");
    let guide = read("../../docs/guides/rust.md");
    let blocks: Vec<_> = guide.split("```rust\n").skip(1).map(|it| it.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        assert!(documented.contains(block.trim_end()), "not in the documentation:\n{block}");
    }
}
