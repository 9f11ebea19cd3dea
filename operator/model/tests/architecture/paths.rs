//! Reads a source file: its modules, its items, its imports, and the other paths in its code.

use std::collections::BTreeSet;

use super::source::{is_name, item_end};

/// A path, such as `crate::a::b`.
pub type Segments = Vec<String>;

/// One imported name.
#[derive(Clone, Debug)]
pub struct Import {
    /// The name in this file. `None`: a glob import.
    pub name: Option<String>,
    /// The path that is imported.
    pub path: Segments,
    /// Whether the import is public.
    pub is_public: bool,
}

/// A module as it is in its source.
#[derive(Debug, Default)]
pub struct Module {
    /// Modules in files of their own.
    pub children: BTreeSet<String>,
    /// Items that are defined in it.
    pub items: BTreeSet<String>,
    /// What it imports.
    pub imports: Vec<Import>,
    /// Other paths in its code that begin with `crate` or `super`.
    pub named: Vec<Segments>,
}

/// Words before the name of an item.
const ITEMS: &[&str] =
    &["struct", "enum", "union", "trait", "fn", "const", "static", "type", "mod", "macro_rules!"];

impl Module {
    /// Reads a source from which string literals and tests were removed.
    pub fn read(source: &str) -> Self {
        let mut module = Self::default();
        let code = module.take_imports(source);
        module.read_items(&code);
        let words =
            code.split(|letter: char| !is_name(letter) && letter != ':').map(|word| word.trim_matches(':'));
        let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
        module.named = paths.map(segments).collect();
        module
    }

    /// Reads all imports, also those inside functions. Returns the source without them.
    fn take_imports(&mut self, source: &str) -> String {
        let mut left = String::with_capacity(source.len());
        let mut rest = source;
        while let Some(at) = find_import(rest) {
            let (before, import) = rest.split_at(at);
            let (import, after) = import.split_once(';').unwrap_or((import, ""));
            let (before, is_public) = without_visibility(before);
            let tree = import["use".len()..].split_whitespace().collect::<Vec<_>>().join(" ");
            imports(&tree.replace(" as ", "@").replace(' ', ""), &[], is_public, self);
            left.push_str(before);
            rest = after;
        }
        left + rest
    }

    fn read_items(&mut self, source: &str) {
        let mut rest = source.trim_start();
        while !rest.is_empty() {
            let (item, after) = rest.split_at(item_end(rest, 0));
            self.read_item(without_attributes(item));
            rest = after.trim_start();
        }
    }

    fn read_item(&mut self, text: &str) {
        let head = text.split(['{', ';', '=', '(']).next().unwrap_or_default();
        // `pub(crate)` has a parenthesis of its own.
        let head =
            if head.trim() == "pub" { text.split(['{', ';', '=']).next().unwrap_or_default() } else { head };
        let words = head.split(|letter: char| !is_name(letter) && letter != '!');
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let Some(at) = words.iter().position(|word| ITEMS.contains(word)) else {
            // The text in a macro's braces may be items too.
            if let Some((_, inside)) = text.split_once('{').filter(|(name, _)| name.trim_end().ends_with('!'))
            {
                self.read_items(inside.trim_end().trim_end_matches('}'));
            }
            return;
        };
        // `const fn` and `static mut`.
        let name = words[at + 1..].iter().find(|word| !ITEMS.contains(*word) && **word != "mut");
        match name {
            Some(name) if words[at] == "mod" && text.trim_end().ends_with(';') => {
                self.children.insert((*name).to_owned());
            }
            Some(name) => {
                self.items.insert((*name).to_owned());
            }
            None => {}
        }
    }
}

/// Where the next import begins. What a type captures is written `use<…>`, and is none.
fn find_import(source: &str) -> Option<usize> {
    let is_import = |at: &usize| {
        !source[..*at].ends_with(is_name) && source[at + "use".len()..].starts_with(char::is_whitespace)
    };
    source.match_indices("use").map(|(at, _)| at).find(is_import)
}

/// Removes the visibility (`pub`, `pub(…)`) at the end of a source. Returns the rest, and whether there was one.
fn without_visibility(source: &str) -> (&str, bool) {
    let text = source.trim_end();
    let text = text.strip_suffix(')').and_then(|text| text.rsplit_once('(')).map_or(text, |(text, _)| text);
    let before = text.trim_end().strip_suffix("pub").filter(|before| !before.ends_with(is_name));
    before.map_or((source, false), |before| (before, true))
}

fn without_attributes(mut text: &str) -> &str {
    while text.starts_with('#') {
        let mut depth = 0;
        let end = text.char_indices().find(|(_, letter)| {
            depth += i32::from(*letter == '[') - i32::from(*letter == ']');
            *letter == ']' && depth == 0
        });
        text = end.map_or("", |(at, _)| text[at + 1..].trim_start());
    }
    text
}

/// Takes a tree of imports apart. It has no blanks, and `@` for ` as `.
fn imports(tree: &str, before: &[String], is_public: bool, module: &mut Module) {
    if let Some((head, rest)) = tree.split_once('{').filter(|(head, _)| !head.contains(',')) {
        let mut before = before.to_vec();
        before.extend(segments(head));
        for part in parts(rest.strip_suffix('}').unwrap_or(rest)) {
            imports(part, &before, is_public, module);
        }
        return;
    }
    let (path, other_name) = tree.split_once('@').map_or((tree, None), |(path, name)| (path, Some(name)));
    let mut path = [before, &segments(path)].concat();
    let name = match path.last().map(String::as_str) {
        Some("*") => {
            path.pop();
            None
        }
        Some("self") => {
            path.pop();
            path.last().cloned()
        }
        Some(name) => Some(name.to_owned()),
        None => return,
    };
    let name = other_name.map_or(name, |name| Some(name.to_owned()));
    module.imports.push(Import { name, path, is_public });
}

fn segments(path: &str) -> Segments {
    path.split("::").filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// Splits a list at the commas that are not in braces.
fn parts(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[from..]);
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

#[test]
fn a_source_is_read() {
    let module = Module::read(
        "mod a; pub(crate) mod b; use a::X; #[cfg(unix)] pub use b::{self, Y as Z, c::*}; #[derive(Debug)] pub struct S { a: u8 } \
         const fn f() -> u8 { crate::g::h() } words! { pub enum E { A } } impl S { fn not_an_item() {} } use crate::{i::J, k};",
    );
    assert_eq!(module.children.iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(module.items.iter().collect::<Vec<_>>(), ["E", "S", "f"]);
    let imports: Vec<_> = module
        .imports
        .iter()
        .map(|it| {
            format!("{:?} = {} {}", it.name.as_deref().unwrap_or("*"), it.path.join("::"), it.is_public)
        })
        .collect();
    let expected = [
        r#""X" = a::X false"#,
        r#""b" = b true"#,
        r#""Z" = b::Y true"#,
        r#""*" = b::c true"#,
        r#""J" = crate::i::J false"#,
        r#""k" = crate::k false"#,
    ];
    assert_eq!(imports, expected);
    assert_eq!(module.named, [["crate", "g", "h"]]);
}
