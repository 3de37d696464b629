//! The modules of a crate, and what each file takes from which other one.
//!
//! In: the crate's root file. Out: the names of its files and the imports between them. Code for tests alone is left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemUse, Meta, UseTree, Visibility};

/// The path of a module from the crate's root; the root's is empty.
pub(super) type ModulePath = Vec<String>;

/// A module, as far as imports concern it.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// The file that holds it.
    pub(super) file: PathBuf,
    /// Names that it defines itself.
    defined: Vec<String>,
    /// Names that it brings into scope: the name, the path it stands for, and whether others may take it from here.
    names: Vec<Name>,
    /// Modules of which it takes everything.
    globs: Vec<Name>,
    /// Every path that its code uses, without those of `use` items.
    paths: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Name {
    alias: String,
    path: Vec<String>,
    is_public: bool,
}

/// All modules of a crate.
#[derive(Debug, Default)]
pub(super) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// One file takes a name from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    /// The module that takes.
    pub(super) from: ModulePath,
    /// The module that defines what is taken.
    pub(super) to: ModulePath,
    /// What is taken, as far as it is resolved.
    pub(super) name: String,
}

impl Crate {
    /// Reads a crate, beginning with its root file.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut all = Self::default();
        let text = fs::read_to_string(root).with_context(|| format!("read {}", root.display()))?;
        all.add_file(Vec::new(), root, &text)?;
        Ok(all)
    }

    fn add_file(&mut self, module: ModulePath, file: &Path, text: &str) -> Result<()> {
        let parsed: File = syn::parse_file(text).with_context(|| format!("parse {}", file.display()))?;
        self.add(module, file, &parsed.items)
    }

    fn add(&mut self, path: ModulePath, file: &Path, items: &[Item]) -> Result<()> {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            if let Item::Mod(inner) = item {
                let mut path = path.clone();
                path.push(inner.ident.to_string());
                if let Some((_, items)) = &inner.content {
                    self.add(path, file, items)?;
                } else {
                    let file = file_of(file, path.len() == 1, &path[path.len() - 1], &inner.attrs)?;
                    let text =
                        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
                    self.add_file(path, &file, &text)?;
                }
                continue;
            }
            module.defined.extend(defined(item));
            Paths(&mut module).visit_item(item);
        }
        self.modules.insert(path, module);
        Ok(())
    }

    /// The modules below the root, without those below them.
    pub(super) fn top_level(&self) -> Vec<&str> {
        self.modules.keys().filter(|path| path.len() == 1).map(|path| path[0].as_str()).collect()
    }

    /// The file that holds a module.
    pub(super) fn file(&self, module: &ModulePath) -> Option<&Path> {
        self.modules.get(module).map(|module| module.file.as_path())
    }

    /// All imports from one file of the crate to another.
    pub(super) fn imports(&self) -> Vec<Import> {
        let mut found = Vec::new();
        for (from, module) in &self.modules {
            let names = module.names.iter().filter(|name| !name.is_public).map(|name| (&name.path, false));
            let globs = module.globs.iter().map(|glob| (&glob.path, true));
            let paths = module.paths.iter().map(|path| (path, false));
            for (path, is_glob) in names.chain(globs).chain(paths) {
                // To bring a module into scope takes nothing from it: the paths that begin with its name do.
                if let Some((to, name)) = self.resolve(from, path)
                    && (is_glob || !name.is_empty())
                    && self.modules[&to].file != module.file
                {
                    found.push(Import { from: from.clone(), to, name });
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The module that defines what a path in `from` names, and the name.
    fn resolve(&self, from: &ModulePath, path: &[String]) -> Option<(ModulePath, String)> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => parent(from)?,
            name => {
                let (module, last) = self.lookup(from, name, 0)?;
                if !last.is_empty() {
                    return Some((module, last));
                }
                module
            }
        };
        while let Some(("super", after)) = rest.split_first().map(|(name, after)| (name.as_str(), after)) {
            at = parent(&at)?;
            rest = after;
        }
        for name in rest {
            let (module, last) = self.lookup(&at, name, 0)?;
            if !last.is_empty() {
                return Some((module, last));
            }
            at = module;
        }
        Some((at, String::new()))
    }

    /// What a name in a module means: another module (then without a name), or a definition in a module.
    fn lookup(&self, at: &ModulePath, name: &str, depth: usize) -> Option<(ModulePath, String)> {
        // Re-exports may name each other; the compiler refuses longer chains that lead nowhere.
        if depth > 16 {
            return None;
        }
        let module = self.modules.get(at)?;
        let mut child = at.clone();
        child.push(name.to_owned());
        if self.modules.contains_key(&child) {
            return Some((child, String::new()));
        }
        if module.defined.iter().any(|defined| defined == name) {
            return Some((at.clone(), name.to_owned()));
        }
        if let Some(known) = module.names.iter().find(|known| known.alias == name) {
            return self.follow(at, &known.path, depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let (module, last) = self.follow(at, &glob.path, depth + 1)?;
            if last.is_empty() { self.lookup(&module, name, depth + 1) } else { None }
        })
    }

    fn follow(&self, at: &ModulePath, path: &[String], depth: usize) -> Option<(ModulePath, String)> {
        let (first, rest) = path.split_first()?;
        let mut here = match first.as_str() {
            "crate" => Vec::new(),
            "self" => at.clone(),
            "super" => parent(at)?,
            name => {
                let mut child = at.clone();
                child.push(name.to_owned());
                if self.modules.contains_key(&child) {
                    child
                } else {
                    let known = self.modules.get(at)?.names.iter();
                    let known = known.filter(|known| known.path != path).find(|known| known.alias == name)?;
                    let (module, last) = self.follow(at, &known.path, depth + 1).filter(|_| depth < 16)?;
                    if !last.is_empty() {
                        return Some((module, last));
                    }
                    module
                }
            }
        };
        for name in rest {
            if name == "super" {
                here = parent(&here)?;
                continue;
            }
            let (module, last) = self.lookup(&here, name, depth + 1)?;
            if !last.is_empty() {
                return Some((module, last));
            }
            here = module;
        }
        Some((here, String::new()))
    }
}

fn parent(module: &ModulePath) -> Option<ModulePath> {
    module.split_last().map(|(_, parent)| parent.to_vec())
}

/// The file of a module that a file declares.
fn file_of(declaring: &Path, is_top: bool, name: &str, attributes: &[Attribute]) -> Result<PathBuf> {
    let directory = declaring.parent().unwrap_or(Path::new(""));
    if let Some(path) = attributes.iter().find_map(path_attribute) {
        return Ok(directory.join(path));
    }
    let stem = declaring.file_stem().unwrap_or_default();
    let own = if is_top || stem == "mod" { directory.to_owned() } else { directory.join(stem) };
    for file in [own.join(format!("{name}.rs")), own.join(name).join("mod.rs")] {
        if file.is_file() {
            return Ok(file);
        }
    }
    bail!("{}: no file of the module `{name}`", declaring.display())
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) if pair.path.is_ident("path") => {
            Some(text.value())
        }
        _ => None,
    }
}

/// Whether an item is compiled only for tests.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("all (test")
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

/// Collects the paths of an item.
struct Paths<'a>(&'a mut Module);

impl Paths<'_> {
    fn add_use(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        let with = |name: &str| before.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(path) => {
                self.add_use(&path.tree, &with(&path.ident.to_string()), is_public);
            }
            UseTree::Name(name) if name.ident == "self" => {
                let name = before.last().cloned().unwrap_or_default();
                self.0.names.push(Name { alias: name, path: before.to_vec(), is_public });
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.0.names.push(Name { path: with(&name), alias: name, is_public });
            }
            UseTree::Rename(rename) => {
                let ident = rename.ident.to_string();
                let path = if ident == "self" { before.to_vec() } else { with(&ident) };
                self.0.names.push(Name { alias: rename.rename.to_string(), path, is_public });
            }
            UseTree::Glob(_) => {
                self.0.globs.push(Name { alias: String::new(), path: before.to_vec(), is_public });
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before, is_public);
                }
            }
        }
    }

    /// Paths in a macro's arguments, which are not parsed: those that begin at a module.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add_path(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colons += 1,
                other => {
                    self.add_path(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add_path(path);
    }

    fn add_path(&mut self, path: Vec<String>) {
        if path.len() > 1 {
            self.0.paths.push(path);
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // A re-export is an import of the module that uses the name.
        let is_public = !matches!(item.vis, Visibility::Inherited);
        self.add_use(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add_path(names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_for_tests(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }
}
