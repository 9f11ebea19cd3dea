//! Statements name the columns of tables. PostgreSQL refuses a prepared statement whose result has changed, so a `*` over
//! a table would fail on every open connection once a migration adds a column.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::workspace;

/// Files below a folder with one of these extensions.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extensions));
        } else if path.extension().is_some_and(|it| extensions.iter().any(|extension| it == *extension)) {
            found.push(path);
        }
    }
    found
}

/// The text without comments, as words.
fn words(text: &str) -> Vec<String> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("--");
    let text = text.lines().filter(is_code).collect::<Vec<_>>().join(" ");
    text.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect()
}

fn name(word: &str) -> String {
    word.chars().filter(|it| it.is_alphanumeric() || *it == '_').collect()
}

/// Tables and views that the migrations create.
fn tables() -> BTreeSet<String> {
    let mut tables = BTreeSet::new();
    for file in files(&workspace().join("operator/store/migrations"), &["sql"]) {
        let words = words(&std::fs::read_to_string(file).unwrap());
        let created =
            words.windows(3).filter(|it| it[0] == "CREATE" && (it[1] == "TABLE" || it[1] == "VIEW"));
        tables.extend(created.map(|it| name(&it[2])));
    }
    tables
}

/// The places where a text takes all columns of one of these tables: `SELECT *` whose `FROM` names it, `table.*`,
/// `alias.*` of `table alias`, and any `RETURNING *`.
fn stars(text: &str, tables: &BTreeSet<String>) -> Vec<String> {
    let words = words(text);
    let mut found = Vec::new();
    let mut aliases = tables.clone();
    for three in words.windows(3) {
        if tables.contains(&three[0]) {
            aliases.insert(name(if three[1] == "AS" { &three[2] } else { &three[1] }));
        }
    }
    for (at, word) in words.iter().enumerate() {
        let star = word.trim_start_matches('(').trim_end_matches(['"', ';', ',', ')']);
        let before = at.checked_sub(1).map(|before| name(&words[before])).unwrap_or_default();
        let from = words[at..].iter().position(|it| it == "FROM").and_then(|from| words.get(at + from + 1));
        let is_over_table = from.is_some_and(|from| tables.contains(&name(from)) && !from.starts_with('('));
        let is_whole = star == "*" && (before == "RETURNING" || before == "SELECT" && is_over_table);
        let qualifier = star.strip_suffix(".*").map(name);
        if is_whole || qualifier.is_some_and(|it| aliases.contains(&it)) {
            found.push(words[at.saturating_sub(1)..words.len().min(at + 4)].join(" "));
        }
    }
    found
}

#[test]
fn no_statement_takes_all_columns_of_a_table() {
    let tables = tables();
    assert!(
        tables.contains("runs") && tables.contains("purges") && tables.contains("held_records"),
        "{tables:?}"
    );
    let mut found = Vec::new();
    for file in files(&workspace().join("operator/store/src"), &["rs", "sql"]) {
        let text = std::fs::read_to_string(&file).unwrap();
        found.extend(stars(&text, &tables).into_iter().map(|star| format!("{}: {star}", file.display())));
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_star_over_a_table_is_found_and_one_over_named_columns_is_not() {
    let tables = BTreeSet::from(["runs".to_owned(), "calls".to_owned()]);
    for text in [
        r#""SELECT * FROM runs WHERE id = $1""#,
        r#""SELECT *, 1 AS one FROM runs""#,
        r#""SELECT c.* FROM page JOIN calls c USING (id)""#,
        r#""SELECT (calls.*) FROM calls AS calls""#,
        r#""DELETE FROM runs RETURNING *""#,
    ] {
        assert_eq!(stars(text, &tables).len(), 1, "{text}");
    }
    for text in [
        r#""SELECT * FROM (SELECT id FROM runs) AS page""#,
        r#""WITH page AS (SELECT id FROM runs) SELECT page.* FROM page""#,
        r#""SELECT count(*) FROM runs""#,
        "// SELECT * FROM runs",
    ] {
        assert_eq!(stars(text, &tables), [""; 0], "{text}");
    }
}
