//! Label selectors, as Kubernetes has them.
//!
//! In: a selector as JSON, then labels. Out: whether the labels match. A missing selector selects nothing, an empty one
//! everything.

use crate::{machine_config::JsonType, text::quote};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

/// Labels of an object.
type ObjectLabels = BTreeMap<String, String>;

/// A label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// `None` selects nothing.
    requirements: Option<Vec<Requirement>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    Equals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// An invalid selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub(super) struct SelectorError {
    /// The field below the selector, with a dot in front.
    pub(super) field: String,
    /// What is wrong with its value.
    pub(super) reason: SelectorFault,
}

impl SelectorError {
    fn new(field: impl Into<String>, reason: SelectorFault) -> Self {
        Self { field: field.into(), reason }
    }
}

/// What is wrong with a field of a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorFault {
    /// The value has another type.
    #[error("not {0}")]
    NotA(JsonType),
    /// The value is missing, or has another type.
    #[error("missing, or not {0}")]
    MissingOrNotA(JsonType),
    /// Selectors do not have the field.
    #[error("unknown field, there are only matchLabels, matchExpressions")]
    Unknown,
    /// Selectors do not have the operator.
    #[error("{} is not one of In, NotIn, Exists, DoesNotExist", quote(_0))]
    Operator(String),
    /// The operator needs values.
    #[error("must be specified when `operator` is '{0}'")]
    NoValues(String),
    /// The operator has no values.
    #[error("may not be specified when `operator` is '{0}'")]
    Values(String),
}

impl Selector {
    /// Reads a selector.
    pub(super) fn read(value: Option<&Value>) -> Result<Self, SelectorError> {
        let value = match value {
            None | Some(Value::Null) => return Ok(Self { requirements: None }),
            Some(value) => value
                .as_object()
                .ok_or_else(|| SelectorError::new("", SelectorFault::NotA(JsonType::Object)))?,
        };
        let mut requirements = Vec::new();
        for (key, value) in value {
            let at = format!(".{key}");
            match (key.as_str(), value) {
                (_, Value::Null) => {}
                ("matchLabels", Value::Object(labels)) => {
                    for (key, value) in labels {
                        let Value::String(value) = value else {
                            let reason = SelectorFault::NotA(JsonType::String);
                            return Err(SelectorError::new(format!("{at}.{key}"), reason));
                        };
                        requirements.push(Requirement {
                            key: key.clone(),
                            operator: Operator::Equals,
                            values: vec![value.clone()],
                        });
                    }
                }
                ("matchExpressions", Value::Array(expressions)) => {
                    for (number, expression) in expressions.iter().enumerate() {
                        requirements.push(requirement(expression, &format!("{at}[{number}]"))?);
                    }
                }
                ("matchLabels", _) => {
                    return Err(SelectorError::new(at, SelectorFault::NotA(JsonType::Object)));
                }
                ("matchExpressions", _) => {
                    return Err(SelectorError::new(at, SelectorFault::NotA(JsonType::List)));
                }
                _ => return Err(SelectorError::new(at, SelectorFault::Unknown)),
            }
        }
        requirements.sort();
        Ok(Self { requirements: Some(requirements) })
    }

    /// Whether labels match.
    pub fn matches(&self, labels: &ObjectLabels) -> bool {
        let Some(requirements) = &self.requirements else { return false };
        requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            let listed = value.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator {
                Operator::Equals | Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// Whether a requirement names this value of this label.
    pub(super) fn names(&self, key: &str, value: &str) -> bool {
        self.requirements.iter().flatten().any(|requirement| {
            requirement.key == key
                && matches!(requirement.operator, Operator::Equals | Operator::In)
                && requirement.values.iter().any(|other| other == value)
        })
    }
}

fn requirement(value: &Value, at: &str) -> Result<Requirement, SelectorError> {
    let field = |name: &str| format!("{at}.{name}");
    let text =
        |name: &str| {
            value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()).ok_or_else(|| {
                SelectorError::new(field(name), SelectorFault::MissingOrNotA(JsonType::String))
            })
        };
    let key = text("key")?.to_owned();
    let word = text("operator")?;
    let operator = match word {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => {
            return Err(SelectorError::new(field("operator"), SelectorFault::Operator(word.to_owned())));
        }
    };
    let mut values = Vec::new();
    match value.get("values") {
        None | Some(Value::Null) => {}
        Some(Value::Array(items)) => {
            for (number, item) in items.iter().enumerate() {
                let at = format!("{}[{number}]", field("values"));
                let text = item.as_str();
                let value =
                    text.ok_or_else(|| SelectorError::new(at, SelectorFault::NotA(JsonType::String)))?;
                values.push(value.to_owned());
            }
        }
        Some(_) => return Err(SelectorError::new(field("values"), SelectorFault::NotA(JsonType::List))),
    }
    let wants = matches!(operator, Operator::In | Operator::NotIn);
    if wants == values.is_empty() {
        let reason = if wants { SelectorFault::NoValues } else { SelectorFault::Values };
        return Err(SelectorError::new(field("values"), reason(word.to_owned())));
    }
    values.sort();
    Ok(Requirement { key, operator, values })
}

/// Kubernetes' form: `role in (infra,worker),!gpu`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Requirement { key, operator, values }) in self.requirements.iter().flatten().enumerate()
        {
            if number > 0 {
                f.write_str(",")?;
            }
            let values = values.join(",");
            match operator {
                Operator::Equals => write!(f, "{key}={values}")?,
                Operator::In => write!(f, "{key} in ({values})")?,
                Operator::NotIn => write!(f, "{key} notin ({values})")?,
                Operator::Exists => write!(f, "{key}")?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}
