//! The files of a crate, and which of them uses what another one defines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::paths::{Import, Module, Segments};
use super::source::{without_tests, without_texts};

/// The files of a crate as its modules: `crate`, `crate::a`, `crate::a::b` …
pub struct CrateFiles(BTreeMap<Segments, Module>);

impl CrateFiles {
    /// Of the crate that begins with this file.
    pub fn read(root: &Path) -> Self {
        let mut modules = BTreeMap::new();
        // The modules of a root file are in the folder of that file.
        read(root, root.parent().unwrap(), vec!["crate".to_owned()], &mut modules);
        Self(modules)
    }

    /// The same from sources that are given.
    pub fn of(sources: &[(&str, &str)]) -> Self {
        let module = |(path, source): &(&str, &str)| {
            (
                path.split("::").map(str::to_owned).collect(),
                Module::read(&without_tests(&without_texts(source))),
            )
        };
        Self(sources.iter().map(module).collect())
    }

    /// Each file, and the files whose items it uses. A public re-export from a submodule of the file does not count.
    pub fn uses(&self) -> BTreeMap<&Segments, BTreeSet<&Segments>> {
        let uses = |(from, module): (_, &Module)| {
            let from: &Segments = from;
            let is_passed_on = |import: &&Import, to: &Segments| import.is_public && to.starts_with(from);
            let imports = module.imports.iter().flat_map(|import| {
                let found = self.resolve(from, &import.path, &mut BTreeSet::new());
                found.into_iter().filter(move |to| !is_passed_on(&import, to))
            });
            let named = module.named.iter().flat_map(|path| self.resolve(from, path, &mut BTreeSet::new()));
            (from, imports.chain(named).filter(|to| *to != from).collect())
        };
        self.0.iter().map(uses).collect()
    }

    /// The file that defines what a path in the file `from` refers to. `None`: another crate defines it.
    fn resolve<'a>(
        &'a self,
        from: &Segments,
        path: &[String],
        seen: &mut BTreeSet<(Segments, Segments)>,
    ) -> Option<&'a Segments> {
        if !seen.insert((from.clone(), path.to_vec())) {
            return None;
        }
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => vec!["crate".to_owned()],
            "self" => from.clone(),
            "super" => from[..from.len() - 1].to_vec(),
            name if self.has(from, name) => {
                rest = path;
                from.clone()
            }
            _ => return None,
        };
        loop {
            let (module, _) = self.0.get_key_value(&at)?;
            let Some((name, after)) = rest.split_first() else { return Some(module) };
            rest = after;
            if name == "super" {
                at.pop();
                continue;
            }
            let body = &self.0[&at];
            if body.children.contains(name) {
                at.push(name.clone());
                continue;
            }
            if body.items.contains(name) {
                return Some(module);
            }
            let is_it = |import: &&Import| import.name.as_ref() == Some(name);
            if let Some(import) = body.imports.iter().find(is_it) {
                // `use uuid::uuid` is of the crate.
                if import.path.first() == Some(name) {
                    return None;
                }
                let path = [&import.path, rest].concat();
                return self.resolve(&at, &path, seen);
            }
            let all = body.imports.iter().filter(|import| import.name.is_none());
            let mut is_open = false;
            for import in all {
                let path = [&import.path, std::slice::from_ref(name), rest].concat();
                match self.module(&at, &import.path) {
                    Some(module) if self.has(&module, name) => return self.resolve(&at, &path, seen),
                    Some(_) => {}
                    // Of another crate: the name may be from there.
                    None => is_open = true,
                }
            }
            // What a macro has made, or a variant of an enum that is passed on.
            return (!is_open).then_some(module);
        }
    }

    /// Whether a module has something of this name, in itself or by an import.
    fn has(&self, module: &Segments, name: &str) -> bool {
        self.has_unseen(module, name, &mut BTreeSet::new())
    }

    fn has_unseen(&self, module: &Segments, name: &str, seen: &mut BTreeSet<Segments>) -> bool {
        let Some(body) = self.0.get(module).filter(|_| seen.insert(module.clone())) else { return false };
        let mut is_imported = |import: &Import| match &import.name {
            Some(imported) => imported == name,
            None => self.module(module, &import.path).is_some_and(|from| self.has_unseen(&from, name, seen)),
        };
        body.children.contains(name) || body.items.contains(name) || body.imports.iter().any(&mut is_imported)
    }

    /// The module that a path refers to, if it is a module of this crate and the path does not lead through an import.
    fn module(&self, from: &Segments, path: &[String]) -> Option<Segments> {
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => vec!["crate".to_owned()],
            "self" => from.clone(),
            "super" => from[..from.len() - 1].to_vec(),
            _ => [from.as_slice(), std::slice::from_ref(first)].concat(),
        };
        for name in rest {
            if name == "super" { drop(at.pop()) } else { at.push(name.clone()) }
        }
        self.0.contains_key(&at).then_some(at)
    }
}

fn read(file: &Path, folder: &Path, path: Segments, modules: &mut BTreeMap<Segments, Module>) {
    let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let module = Module::read(&without_tests(&without_texts(&source)));
    for child in &module.children {
        let candidates: [PathBuf; 2] =
            [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
        let found = candidates.iter().find(|file| file.exists());
        let found = found.unwrap_or_else(|| panic!("{}: no file for module {child}", file.display()));
        read(found, &folder.join(child), [path.as_slice(), std::slice::from_ref(child)].concat(), modules);
    }
    modules.insert(path, module);
}
