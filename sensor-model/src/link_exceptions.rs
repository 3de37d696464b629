//! Symbolic links that may be in a closed directory.
//!
//! In: pairs of a glob for the name and a glob for the target. Out: whether a link matches one of the pairs. A name alone is no exception,
//! because a file of the same name, or a link to another target, may replace a unit or run a program as root.

use crate::name_patterns::{NamePatternFault, check_name};
use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};
use std::{path::Path, sync::Arc};

/// Symbolic links that are no drift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkException {
    /// A glob for the name of the link.
    pub name: String,
    /// A glob for the text of its target. `*` matches no `/`.
    pub target: String,
}

/// A link exception with its globs.
#[derive(Debug)]
struct Compiled {
    exception: LinkException,
    name: GlobMatcher,
    target: GlobMatcher,
}

/// All link exceptions of a rule. A clone shares them. It is one pointer, because each expectation has room for the largest kind.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<LinkException>", into = "Vec<LinkException>")]
pub struct LinkExceptions(Option<Arc<Vec<Compiled>>>);

/// Which field of which exception is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkExceptionFault {
    /// The number of the exception.
    pub number: usize,
    /// The field.
    pub field: &'static str,
    /// The reason.
    pub reason: NamePatternFault,
}

impl LinkExceptions {
    /// These exceptions.
    ///
    /// # Errors
    /// The first field that is no glob, and why.
    pub fn new(exceptions: Vec<LinkException>) -> Result<Self, LinkExceptionFault> {
        let compiled = exceptions.into_iter().enumerate().map(|(number, exception)| {
            let fault = |field| move |reason| LinkExceptionFault { number, field, reason };
            check_name(&exception.name).map_err(fault("name"))?;
            let name = matcher(&exception.name).map_err(fault("name"))?;
            if exception.target.is_empty() {
                return Err(fault("target")(NamePatternFault::EmptyTarget));
            }
            let target = matcher(&exception.target).map_err(fault("target"))?;
            Ok(Compiled { exception, name, target })
        });
        let compiled = compiled.collect::<Result<Vec<_>, _>>()?;
        Ok(Self((!compiled.is_empty()).then(|| Arc::new(compiled))))
    }

    fn compiled(&self) -> impl Iterator<Item = &Compiled> {
        self.0.iter().flat_map(|all| all.iter())
    }

    /// Whether one of them is about links with this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.compiled().any(|one| one.name.is_match(name))
    }

    /// Whether a link with this name and target matches one of them.
    pub fn matches(&self, name: &str, target: &Path) -> bool {
        self.compiled().any(|one| one.name.is_match(name) && one.target.is_match(target))
    }

    /// The exceptions, in their order.
    pub fn all(&self) -> impl Iterator<Item = &LinkException> {
        self.compiled().map(|one| &one.exception)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

fn matcher(glob: &str) -> Result<GlobMatcher, NamePatternFault> {
    let glob = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
    Ok(glob.map_err(|error| NamePatternFault::Glob(error.kind().clone()))?.compile_matcher())
}

/// Exceptions that cannot be read match nothing: the policy's own check refused them.
impl From<Vec<LinkException>> for LinkExceptions {
    fn from(exceptions: Vec<LinkException>) -> Self {
        Self::new(exceptions).unwrap_or_default()
    }
}

impl From<LinkExceptions> for Vec<LinkException> {
    fn from(exceptions: LinkExceptions) -> Self {
        exceptions.all().cloned().collect()
    }
}

impl PartialEq for LinkExceptions {
    fn eq(&self, other: &Self) -> bool {
        self.all().eq(other.all())
    }
}

impl Eq for LinkExceptions {}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceptions(pairs: &[(&str, &str)]) -> Result<LinkExceptions, LinkExceptionFault> {
        let exception =
            |(name, target): &(&str, &str)| LinkException { name: (*name).into(), target: (*target).into() };
        LinkExceptions::new(pairs.iter().map(exception).collect())
    }

    #[test]
    fn a_link_matches_by_name_and_target_of_the_same_exception() {
        let all =
            exceptions(&[("sshd.service", "/usr/lib/systemd/system/ssh.service"), ("dbus-*", "/usr/lib/*")]);
        let all = all.unwrap();
        for (name, target, matches) in [
            ("sshd.service", "/usr/lib/systemd/system/ssh.service", true),
            ("sshd.service", "/usr/lib/x", false),
            ("sshd.service", "/tmp/usr/lib/systemd/system/ssh.service", false),
            ("dbus-a", "/usr/lib/x", true),
            ("dbus-a", "/usr/lib/x/y", false),
            ("dbus-a", "/usr/lib/../../tmp/y", false),
            ("other", "/usr/lib/x", false),
        ] {
            assert_eq!(all.matches(name, Path::new(target)), matches, "{name} -> {target}");
        }
        assert!(all.has_name("sshd.service") && !all.has_name("other"));
        assert!(!LinkExceptions::default().matches("", Path::new("")));
    }

    #[test]
    fn a_field_that_is_no_glob_is_refused_with_its_number_and_name() {
        for (name, target, field) in [
            ("a/b", "x", "name"),
            ("", "x", "name"),
            ("[", "x", "name"),
            ("a", "", "target"),
            ("a", "[", "target"),
        ] {
            let fault = exceptions(&[("a", "x"), (name, target)]).unwrap_err();
            assert_eq!((fault.number, fault.field), (1, field), "{name} -> {target}");
        }
    }
}
