//! Reads the rules of a policy file.
//!
//! In: YAML or JSON of one policy, or of a list of them. Out: checked rules, or the first fault with its field. An unknown key is a
//! fault: with a misspelt `action` the default would apply.

use super::{
    AllowedActors, DriftAction, DriftPolicyFile, LabelComparison, Rule,
    error::{DriftPolicyError, DriftPolicyFault, RuleError},
    path_rules::{Pattern, glob},
};
use crate::{
    fields::{list, text, wrong_type},
    link_exceptions::{LinkException, LinkExceptionFault, LinkExceptions},
    name_patterns::NamePatterns,
    path::{PathError, check_absolute},
};
use serde_json::{Map, Value};

/// The only version.
pub(super) const API_VERSION: &str = "holdfast.dev/v1alpha1";
/// The kind of a policy.
pub(super) const KIND: &str = "DriftPolicy";
/// The kind of a list of policies: the form in which the daemon keeps those of the cluster.
pub const LIST_KIND: &str = "DriftPolicyList";
/// Largest file that is read.
const MAXIMUM_BYTES: usize = 1 << 20;
/// The keys of a rule.
const RULE_KEYS: &[&str] = &[
    "path",
    "action",
    "allowedActors",
    "secret",
    "labels",
    "closed",
    "absent",
    "image",
    "scan",
    "except",
    "exceptLinks",
    "reason",
];
/// The keys of a rule that only a closed directory may have.
const EXCEPTION_KEYS: [&str; 2] = ["except", "exceptLinks"];
/// Most rules in a file.
const MAXIMUM_RULES: usize = 10_000;

impl DriftPolicyFile {
    /// Reads one file; `origin` is its name for messages.
    ///
    /// # Errors
    /// The first fault, with its field and the reason.
    pub fn parse(origin: &str, bytes: &[u8]) -> Result<Self, DriftPolicyError> {
        document(bytes).and_then(|value| file(origin, &value)).map_err(|error| error.of(origin))
    }

    /// Reads the policies of one file: one policy, or the items of a `DriftPolicyList`. An item's origin is its kind and name.
    ///
    /// # Errors
    /// The first fault, with its field and the reason.
    pub fn parse_all(origin: &str, bytes: &[u8]) -> Result<Vec<Self>, DriftPolicyError> {
        let value = document(bytes).map_err(|error| error.of(origin))?;
        if value.get("kind").and_then(Value::as_str) != Some(LIST_KIND) {
            return Ok(vec![Self::of_object(origin, &value)?]);
        }
        let items = mapping(&value, "file", &["apiVersion", "kind", "items"])
            .and_then(|top| Ok(list(required(top, "items", "")?, "items")?))
            .map_err(|error| error.of(origin))?;
        items.iter().map(Self::of_item).collect()
    }

    /// Reads one policy that is an object already.
    ///
    /// # Errors
    /// The first fault, with its field and the reason.
    pub fn of_object(origin: &str, value: &Value) -> Result<Self, DriftPolicyError> {
        file(origin, value).map_err(|error| error.of(origin))
    }

    /// Reads one policy of a list. Its origin is its kind and name.
    ///
    /// # Errors
    /// The first fault, with its field and the reason.
    pub fn of_item(value: &Value) -> Result<Self, DriftPolicyError> {
        let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        Self::of_object(&format!("{KIND} {name:?}"), value)
    }
}

fn document(bytes: &[u8]) -> Result<Value, RuleError> {
    let refuse = |reason: DriftPolicyFault| RuleError::new("file", reason);
    if bytes.len() > MAXIMUM_BYTES {
        return Err(refuse(DriftPolicyFault::TooLarge(MAXIMUM_BYTES)));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| refuse(error.into()))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 32, max_events: 400_000, max_nodes: 400_000 },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| refuse(DriftPolicyFault::Yaml(error.to_string())))
}

fn file(origin: &str, value: &Value) -> Result<DriftPolicyFile, RuleError> {
    let top = mapping(value, "file", &["apiVersion", "kind", "metadata", "spec"])?;
    for (key, only) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = text(required(top, key, "")?, key)?;
        if found != only {
            return Err(RuleError::new(key, DriftPolicyFault::Only { only, found: found.to_owned() }));
        }
    }
    let metadata = mapping(required(top, "metadata", "")?, "metadata", &["name", "labels", "annotations"])?;
    let spec = mapping(required(top, "spec", "")?, "spec", &["precedence", "rules"])?;
    let precedence = match spec.get("precedence") {
        None => 0,
        Some(value) => {
            value.as_i64().ok_or_else(|| wrong_type("spec.precedence", value, "a whole number"))?
        }
    };
    let listed = list(required(spec, "rules", "spec.")?, "spec.rules")?;
    if listed.len() > MAXIMUM_RULES {
        return Err(RuleError::new("spec.rules", DriftPolicyFault::TooManyRules(MAXIMUM_RULES)));
    }
    let mut rules: Vec<Rule> = Vec::with_capacity(listed.len());
    let mut seen = std::collections::BTreeMap::new();
    for (number, value) in listed.iter().enumerate() {
        let rule = rule(value, &format!("spec.rules[{number}]"))?;
        if let Some(first) = seen.insert((rule.path.clone(), rule.kind()), number) {
            let reason = DriftPolicyFault::Twice { path: rule.path, first };
            return Err(RuleError::new(format!("spec.rules[{number}].path"), reason));
        }
        rules.push(rule);
    }
    let name = text(required(metadata, "name", "metadata.")?, "metadata.name")?.to_owned();
    Ok(DriftPolicyFile { origin: origin.to_owned(), name, precedence, rules })
}

fn rule(value: &Value, at: &str) -> Result<Rule, RuleError> {
    let rule = mapping(value, at, RULE_KEYS)?;
    let field = |key: &str| format!("{at}.{key}");
    let path = text(required(rule, "path", &field(""))?, &field("path"))?;
    check_pattern(path).map_err(|reason| RuleError::new(field("path"), reason))?;
    let action = text(required(rule, "action", &field(""))?, &field("action"))?;
    let Some(&action) = DriftAction::ALL.iter().find(|known| known.as_str() == action) else {
        return Err(RuleError::new(field("action"), DriftPolicyFault::Action(action.to_owned())));
    };
    let allowed_actors = match rule.get("allowedActors") {
        None => AllowedActors::default(),
        Some(value) => allowed(value, &field("allowedActors"))?,
    };
    let secret = match rule.get("secret") {
        None => true,
        Some(value) => value.as_bool().ok_or_else(|| wrong_type(&field("secret"), value, "true or false"))?,
    };
    let labels = match rule.get("labels").map(|value| text(value, &field("labels"))).transpose()? {
        None | Some("compare") => LabelComparison::Compare,
        Some("ignore") => LabelComparison::Ignore,
        Some(other) => {
            return Err(RuleError::new(field("labels"), DriftPolicyFault::Labels(other.to_owned())));
        }
    };
    let absent = absent(rule, path, at)?;
    let closed = closed(rule, path, at)?;
    let except = if closed { except(rule, at)? } else { NamePatterns::default() };
    let except_links = if closed { except_links(rule, at)? } else { LinkExceptions::default() };
    let image = flag(rule, "image", at)?;
    if image && closed {
        return Err(RuleError::new(field("image"), DriftPolicyFault::ClosedImage));
    }
    if image && action == DriftAction::Revert {
        return Err(RuleError::new(field("action"), DriftPolicyFault::RevertImage));
    }
    let scan = flag(rule, "scan", at)?;
    if scan && !image {
        return Err(RuleError::new(field("scan"), DriftPolicyFault::ScanWithoutImage));
    }
    if scan && action == DriftAction::Deny {
        return Err(RuleError::new(field("action"), DriftPolicyFault::DenyScan));
    }
    let reason = rule.get("reason").map(|value| text(value, &field("reason"))).transpose()?;
    let reason = reason.map(str::to_owned);
    Ok(Rule {
        path: path.to_owned(),
        action,
        allowed_actors,
        secret,
        labels,
        closed,
        absent,
        image,
        scan,
        except,
        except_links,
        reason,
    })
}

/// Whether nothing may be at the rule's path. A directory or a glob would be more than a person means, and what it names is not one object.
fn absent(rule: &Map<String, Value>, path: &str, at: &str) -> Result<bool, RuleError> {
    let absent = flag(rule, "absent", at)?;
    if !absent {
        return Ok(false);
    }
    for key in ["closed", "image"] {
        if flag(rule, key, at)? {
            return Err(RuleError::new(format!("{at}.absent"), DriftPolicyFault::AbsentWith(key)));
        }
    }
    if Pattern::of(path) != Pattern::Exact {
        return Err(RuleError::new(format!("{at}.path"), DriftPolicyFault::AbsentPath(path.to_owned())));
    }
    Ok(true)
}

/// Whether the rule closes directories. Only such a rule has exceptions.
fn closed(rule: &Map<String, Value>, path: &str, at: &str) -> Result<bool, RuleError> {
    let closed = flag(rule, "closed", at)?;
    if let (false, Some(key)) = (closed, EXCEPTION_KEYS.into_iter().find(|key| rule.contains_key(*key))) {
        return Err(RuleError::new(format!("{at}.{key}"), DriftPolicyFault::NotClosed));
    }
    let names_directories = path != "/" && Pattern::of(path) != Pattern::Exact && !path.contains("**");
    if closed && !names_directories {
        return Err(RuleError::new(format!("{at}.path"), DriftPolicyFault::ClosedPath(path.to_owned())));
    }
    Ok(closed)
}

/// The names that may be in closed directories besides.
fn except(rule: &Map<String, Value>, at: &str) -> Result<NamePatterns, RuleError> {
    let at = format!("{at}.except");
    let Some(value) = rule.get("except") else { return Ok(NamePatterns::default()) };
    let mut names = Vec::new();
    for (number, value) in list(value, &at)?.iter().enumerate() {
        names.push(text(value, &format!("{at}[{number}]"))?.to_owned());
    }
    NamePatterns::new(names).map_err(|(number, fault)| RuleError::new(format!("{at}[{number}]"), fault))
}

/// The symbolic links that may be in closed directories besides.
fn except_links(rule: &Map<String, Value>, at: &str) -> Result<LinkExceptions, RuleError> {
    let at = format!("{at}.exceptLinks");
    let Some(value) = rule.get("exceptLinks") else { return Ok(LinkExceptions::default()) };
    let mut links = Vec::new();
    for (number, value) in list(value, &at)?.iter().enumerate() {
        let at = format!("{at}[{number}]");
        let link = mapping(value, &at, &["name", "target"])?;
        let field = |key: &str| -> Result<String, RuleError> {
            let at = format!("{at}.{key}");
            let value = link.get(key).ok_or_else(|| RuleError::new(&at, DriftPolicyFault::Missing))?;
            Ok(text(value, &at)?.to_owned())
        };
        links.push(LinkException { name: field("name")?, target: field("target")? });
    }
    LinkExceptions::new(links).map_err(|LinkExceptionFault { number, field, reason }| {
        RuleError::new(format!("{at}[{number}].{field}"), reason)
    })
}

/// A key that is false if it is absent.
fn flag(rule: &Map<String, Value>, key: &str, at: &str) -> Result<bool, RuleError> {
    let Some(value) = rule.get(key) else { return Ok(false) };
    Ok(value.as_bool().ok_or_else(|| wrong_type(&format!("{at}.{key}"), value, "true or false"))?)
}

fn allowed(value: &Value, at: &str) -> Result<AllowedActors, RuleError> {
    let actors = mapping(value, at, &["units", "exes", "pods", "users"])?;
    let names = |key: &str, patterns: bool| -> Result<Vec<String>, RuleError> {
        let Some(value) = actors.get(key) else { return Ok(Vec::new()) };
        let at = format!("{at}.{key}");
        let mut names = Vec::new();
        for (number, value) in list(value, &at)?.iter().enumerate() {
            let at = format!("{at}[{number}]");
            let name = text(value, &at)?;
            if patterns {
                glob(name).map_err(|kind| RuleError::new(&at, DriftPolicyFault::ActorPattern(kind)))?;
            }
            if key == "exes" && !name.starts_with('/') {
                return Err(RuleError::new(at, DriftPolicyFault::Relative(name.to_owned())));
            }
            names.push(name.to_owned());
        }
        Ok(names)
    };
    Ok(AllowedActors {
        units: names("units", true)?,
        exes: names("exes", true)?,
        pods: names("pods", true)?,
        users: names("users", false)?,
    })
}

/// A path is absolute and cleaned; a directory is so without its final `/`. A glob cannot be cleaned, but must not contain `..`.
fn check_pattern(path: &str) -> Result<(), DriftPolicyFault> {
    match Pattern::of(path) {
        Pattern::Exact => Ok(check_absolute(path)?),
        Pattern::Directory if path == "/" => Ok(()),
        Pattern::Directory => Ok(check_absolute(&path[..path.len() - 1])?),
        Pattern::Glob(_) if !path.starts_with('/') => Err(PathError::NotAbsolute(path.to_owned()).into()),
        Pattern::Glob(_) if path.ends_with('/') => Err(DriftPolicyFault::GlobOfDirectory(path.to_owned())),
        Pattern::Glob(_) if path.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) => {
            Err(PathError::NotSimplified(path.to_owned()).into())
        }
        Pattern::Glob(_) => glob(path).map(drop).map_err(DriftPolicyFault::Glob),
    }
}

fn mapping<'a>(
    value: &'a Value,
    at: &str,
    known: &'static [&'static str],
) -> Result<&'a Map<String, Value>, RuleError> {
    let map = value.as_object().ok_or_else(|| wrong_type(at, value, "a mapping"))?;
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(RuleError::new(at, DriftPolicyFault::Unknown { key: key.clone(), known })),
        None => Ok(map),
    }
}

fn required<'a>(map: &'a Map<String, Value>, key: &str, at: &str) -> Result<&'a Value, RuleError> {
    map.get(key).ok_or_else(|| RuleError::new(format!("{at}{key}"), DriftPolicyFault::Missing))
}
