//! The first field of a config that has another type than its spec.
//!
//! In: JSON, and the types of a spec. Out: the typed value, or the field with the type that it must have. An error of `serde_json`
//! has only a text, and the text also has the value, which may be a secret.

use super::error::{FormFault, IgnitionError};
use serde::{
    de::{
        self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::Value;
use serde_path_to_error::Segment;
use std::fmt;

/// Reads JSON as a type.
///
/// # Errors
/// The first field that has another type, or that lacks a field.
pub(super) fn read<T: DeserializeOwned>(json: &Value) -> Result<T, IgnitionError> {
    serde_path_to_error::deserialize(Form(json)).map_err(|error| {
        let path = error.path();
        let is_mode = matches!(path.iter().next_back(), Some(Segment::Map { key }) if key == "mode");
        let field = path.to_string();
        let fault = match error.into_inner() {
            FormFault::Number if is_mode => FormFault::Mode,
            fault => fault,
        };
        IgnitionError::new(field, fault)
    })
}

impl de::Error for FormFault {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Unclear
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

/// JSON whose errors name the type that the reader asks for.
#[derive(Clone, Copy)]
struct Form<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, FormFault> for Form<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Form<'de> {
    type Error = FormFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(_) => self.deserialize_bool(visitor),
            Value::Number(_) => self.deserialize_i64(visitor),
            Value::String(_) => self.deserialize_str(visitor),
            Value::Array(_) => self.deserialize_seq(visitor),
            Value::Object(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        visitor.visit_bool(self.0.as_bool().ok_or(FormFault::Boolean)?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        visitor.visit_i64(self.0.as_i64().ok_or(FormFault::Number)?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        visitor.visit_borrowed_str(self.0.as_str().ok_or(FormFault::Text)?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        let list = self.0.as_array().ok_or(FormFault::List)?;
        visitor.visit_seq(SeqDeserializer::new(list.iter().map(Form)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        let object = self.0.as_object().ok_or(FormFault::Object)?;
        visitor.visit_map(MapDeserializer::new(object.iter().map(|(key, value)| (key.as_str(), Form(value)))))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormFault> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormFault> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 u8 u16 u32 u64 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct enum identifier
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ignition_config::v3_6::Config;
    use serde_json::json;

    #[test]
    fn an_error_names_the_field_and_the_type_that_it_must_have_and_never_the_value() {
        let v = json!({ "version": "3.6.0" });
        let file = |fields: Value| json!({ "ignition": v, "storage": { "files": [fields] } });
        for (config, wanted) in [
            (file(json!({ "path": 3 })), "storage.files[0].path: must be a string"),
            (file(json!({ "path": null })), "storage.files[0].path: must be a string"),
            (
                file(json!({ "path": "/a", "overwrite": "no" })),
                "storage.files[0].overwrite: must be a boolean",
            ),
            (
                file(json!({ "path": "/a", "user": { "id": "x" } })),
                "storage.files[0].user.id: must be a number",
            ),
            (
                file(json!({ "path": "/a", "user": { "id": 1.5 } })),
                "storage.files[0].user.id: must be a number",
            ),
            (
                file(json!({ "path": "/a", "mode": u64::MAX })),
                "storage.files[0].mode: must be a number such as 0644 or 420",
            ),
            (file(json!({ "path": "/a", "append": {} })), "storage.files[0].append: must be a list"),
            (file(json!("/a")), "storage.files[0]: must be an object"),
            (file(json!({ "mode": 420 })), "storage.files[0]: missing field `path`"),
            (json!({ "ignition": v, "storage": [] }), "storage: must be an object"),
        ] {
            assert_eq!(read::<Config>(&config).unwrap_err().to_string(), wanted);
            assert!(serde_json::from_value::<Config>(config).is_err(), "{wanted}");
        }
    }

    #[test]
    fn a_valid_config_is_read_as_serde_json_reads_it() {
        let config = json!({
            "ignition": { "version": "3.6.0" },
            "unknown": { "ignored": [1, null] },
            "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": ["a"], "shouldExist": null }] },
            "storage": { "files": [{ "path": "/a", "mode": -1, "contents": { "source": "data:,a" } }] },
            "systemd": { "units": [{ "name": "a.service", "enabled": true, "dropins": [] }] },
        });
        assert_eq!(read::<Config>(&config).unwrap(), serde_json::from_value(config).unwrap());
    }
}
