//! The extensions that are merged over a host's hierarchies, as one text.
//!
//! In: what is mounted over each hierarchy, or the text in an index. Out: the text, which is another one if other extensions are merged, or the
//! names for a hierarchy.

use super::hierarchy::{Cover, ExtensionClass};
use std::path::{Path, PathBuf};

/// The extensions that are merged over one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedHierarchy {
    /// The hierarchy.
    pub path: PathBuf,
    /// The class of the extensions.
    pub class: ExtensionClass,
    /// Their names, in systemd's order.
    pub names: Vec<String>,
}

/// The extensions that are merged over the hierarchies of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergedExtensions {
    /// One for each merged hierarchy and class.
    pub hierarchies: Vec<MergedHierarchy>,
}

impl MergedExtensions {
    /// Adds what is mounted over a hierarchy.
    pub fn add(&mut self, path: &Path, covers: &[Cover]) {
        for cover in covers {
            if let Cover::Extensions { class, names, .. } = cover {
                let (path, class, names) = (path.to_owned(), *class, names.clone());
                self.hierarchies.push(MergedHierarchy { path, class, names });
            }
        }
    }

    /// The names of a class, each once, in systemd's order.
    pub fn names(&self, class: ExtensionClass) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for merged in self.hierarchies.iter().filter(|merged| merged.class == class) {
            for name in &merged.names {
                if !found.contains(&name.as_str()) {
                    found.push(name);
                }
            }
        }
        found
    }

    /// The names for a hierarchy, sorted.
    pub fn over(&self, path: &Path) -> Vec<String> {
        let of = self.hierarchies.iter().filter(|merged| merged.path == path);
        let mut names: Vec<String> = of.flat_map(|merged| merged.names.iter().cloned()).collect();
        names.sort();
        names
    }

    /// A line for each hierarchy: class, path and names, between tabs. systemd allows no tab in a name.
    pub fn text(&self) -> String {
        let lines = self.hierarchies.iter().map(|merged| {
            let path = merged.path.to_string_lossy();
            let fields = [merged.class.as_str(), &path].into_iter();
            fields.chain(merged.names.iter().map(String::as_str)).collect::<Vec<_>>().join("\t")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Reads the text. Ignores lines of another form.
    pub fn parse(text: &str) -> Self {
        let hierarchies = text.lines().filter_map(|line| {
            let mut fields = line.split('\t');
            let class = fields.next()?;
            let class = ExtensionClass::ALL.iter().copied().find(|known| known.as_str() == class)?;
            let path = PathBuf::from(fields.next()?);
            Some(MergedHierarchy { path, class, names: fields.map(str::to_owned).collect() })
        });
        Self { hierarchies: hierarchies.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_what_is_merged_over_each_hierarchy_and_is_read_again() {
        let cover = |class, names: &[&str]| Cover::Extensions {
            class,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            writable: false,
        };
        let mut merged = MergedExtensions::default();
        merged.add(Path::new("/usr"), &[cover(ExtensionClass::System, &["b", "a c"])]);
        merged.add(Path::new("/opt"), &[cover(ExtensionClass::System, &["b", "a c"])]);
        let other = Cover::Overlay { writable: true };
        merged.add(Path::new("/etc"), &[other, cover(ExtensionClass::Configuration, &["b"])]);
        assert_eq!(merged.text(), "sysext\t/usr\tb\ta c\nsysext\t/opt\tb\ta c\nconfext\t/etc\tb");
        assert_eq!(MergedExtensions::parse(&merged.text()), merged);
        assert_eq!(merged.names(ExtensionClass::System), ["b", "a c"]);
        assert_eq!(merged.over(Path::new("/usr")), ["a c", "b"]);
        assert_eq!(merged.over(Path::new("/")), Vec::<String>::new());
        assert_eq!(MergedExtensions::parse("").hierarchies, []);
        assert_eq!(MergedExtensions::parse("nonsense\t/x\ta").hierarchies, []);
    }
}
