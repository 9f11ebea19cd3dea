//! Files inside a crate that import one another in a circle, through however many others: to understand one of them, all
//! must be read. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::crate_files::CrateFiles;
use super::packages;
use super::paths::Segments;

/// Circles that are known: the crate, and the modules of each without the `crate::` before them. The list may only
/// become shorter: a circle that is gone must leave the list.
const KNOWN: &[(&str, &[&str])] = &[];

#[test]
fn no_files_of_a_crate_import_one_another_in_a_circle() {
    let mut problems = Vec::new();
    let mut met = BTreeSet::new();
    for package in packages() {
        for root in &package.roots {
            for circle in circles(&CrateFiles::read(root)) {
                let known = KNOWN.iter().position(|(name, modules)| {
                    *name == package.name
                        && circle.iter().all(|module| modules.contains(&module.trim_start_matches("crate::")))
                });
                match known {
                    Some(known) => {
                        met.insert(known);
                    }
                    None => problems.push(format!("{}: {}", package.name, circle.join(", "))),
                }
            }
        }
    }
    let is_gone = |at: &usize| !met.contains(at);
    problems.extend(
        (0..KNOWN.len()).filter(is_gone).map(|at| format!("{:?} is gone: take it off the list", KNOWN[at])),
    );
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The circles of a crate, each as the modules that are in it.
fn circles(files: &CrateFiles) -> Vec<Vec<String>> {
    let uses = files.uses();
    let mut left: BTreeSet<&Segments> = uses.keys().copied().collect();
    let mut circles = Vec::new();
    while let Some(first) = left.pop_first() {
        let circle: Vec<&Segments> =
            reached(&uses, first).into_iter().filter(|other| reached(&uses, other).contains(first)).collect();
        for module in &circle {
            left.remove(module);
        }
        if circle.len() > 1 {
            circles.push(circle.into_iter().map(|module| module.join("::")).collect());
        }
    }
    circles
}

/// A file, and all that it uses, through others too.
fn reached<'a>(
    uses: &BTreeMap<&'a Segments, BTreeSet<&'a Segments>>,
    from: &'a Segments,
) -> BTreeSet<&'a Segments> {
    let (mut reached, mut next) = (BTreeSet::from([from]), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses[module].iter().copied().filter(|used| reached.insert(*used)));
    }
    reached
}

#[test]
fn circles_are_seen_and_what_is_none_is_not() {
    let found = |sources: &[(&str, &str)]| circles(&CrateFiles::of(sources));
    let root = ("crate", "mod a; mod b; pub use a::*; pub use b::B;");
    let two = vec!["crate::a".to_owned(), "crate::b".to_owned()];
    for (a, b) in [
        ("use crate::b::B; pub struct A;", "use crate::a::A; pub struct B;"),
        ("use super::b::B; pub struct A;", "use super::a::A; pub struct B;"),
        // By what the root passes on.
        ("use crate::B; pub struct A;", "use crate::A; pub struct B;"),
        // In the code itself.
        ("pub struct A; fn f() { crate::b::g() }", "use crate::a; pub struct B; pub fn g() { a::f() }"),
    ] {
        assert_eq!(found(&[root, ("crate::a", a), ("crate::b", b)]), std::slice::from_ref(&two), "{a} {b}");
    }
    // In one direction, or in tests.
    let a = ("crate::a", "use crate::b::B; pub struct A;");
    assert!(found(&[root, a, ("crate::b", "pub struct B;")]).is_empty());
    assert!(
        found(&[root, a, ("crate::b", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }")])
            .is_empty()
    );
    // A module that passes on what its own modules have, which use what it defines itself.
    let passes_on = ("crate", "mod a; pub use a::A; pub struct Root;");
    let uses_root = ("crate::a", "use crate::Root; pub struct A;");
    assert!(found(&[passes_on, uses_root]).is_empty());
    // One that uses it.
    let uses_a = ("crate", "mod a; use a::A; pub struct Root(A);");
    assert_eq!(found(&[uses_a, uses_root]), [["crate".to_owned(), "crate::a".to_owned()]]);
}
