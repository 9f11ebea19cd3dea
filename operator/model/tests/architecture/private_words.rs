//! Words that a newcomer could not understand were replaced by the field's own. The most unmistakable of them must not
//! come back as the name of a file, a type, a trait, a module, a macro or a function.

use std::fs;
use std::path::{Path, PathBuf};

use super::source::without_texts;
use super::workspace;

/// The words, in the form in which they were names.
const PRIVATE: [&str; 25] = [
    "Clearer",
    "Footing",
    "Gather",
    "Ground",
    "Lane",
    "Laptop",
    "LastWords",
    "Nameless",
    "NodeBook",
    "PodBook",
    "Restless",
    "Shelved",
    "Standpoint",
    "Stranger",
    "Teller",
    "Wish",
    "cut_off",
    "end_noted",
    "has_run_out",
    "hasty",
    "patience",
    "spare_our_own_gap",
    "strays",
    "take_up",
    "way_out",
];

/// Keywords that a name follows.
const DEFINITIONS: [&str; 7] = ["enum", "fn", "macro_rules!", "mod", "struct", "trait", "type"];

#[test]
fn no_private_word_is_a_name() {
    let mut found = Vec::new();
    for file in sources(workspace()) {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = without_texts(&fs::read_to_string(&file).unwrap());
        let private = names(&text).chain([stem.as_str()]).filter(|name| PRIVATE.contains(name));
        found.extend(private.map(|name| format!("{}: {name}", file.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_private_word_is_found_where_it_is_defined_and_only_there() {
    let text = without_texts(
        "pub(crate) async fn take_up<T>() { hasty(\"struct Lane\") } // fn way_out\nstruct Laptop;",
    );
    let found: Vec<_> = names(&text).filter(|name| PRIVATE.contains(name)).collect();
    assert_eq!(found, ["take_up", "Laptop"]);
}

/// The names that a source without its comments and strings defines.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words: Vec<_> = text.split_whitespace().collect();
    let defined = words.windows(2).filter(|pair| DEFINITIONS.contains(&pair[0])).map(|pair| pair[1]);
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let defined: Vec<_> =
        defined.map(|word| word.split(|letter| !is_name(letter)).next().unwrap_or_default()).collect();
    defined.into_iter()
}

/// All Rust sources below a folder, without what was built and what is hidden.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(sources(&entry));
        } else if name.ends_with(".rs") {
            found.push(entry);
        }
    }
    found
}
