//! The fields that Ignition configs of spec 3.6 have, by the object that they are in.
//!
//! In: the path of a field that the parser did not use. Out: its path in the form of reports, and the fields that its object
//! has. Specs 3.0 to 3.6 only add fields.

use super::error::IgnitionError;
use crate::unknown::unknown_field;

const ROOT: &[&str] = &["ignition", "kernelArguments", "passwd", "storage", "systemd"];
const RESOURCE: &[&str] = &["compression", "httpHeaders", "source", "verification"];
const OWNER: &[&str] = &["id", "name"];

/// Fields of an object, by its name in the parent object; an item of a list has the name of the list.
fn of(object: &str) -> &'static [&'static str] {
    match object {
        "ignition" => &["config", "proxy", "security", "timeouts", "version"],
        "config" => &["merge", "replace"],
        "merge" | "replace" | "contents" | "append" | "keyFile" | "certificateAuthorities" => RESOURCE,
        "httpHeaders" => &["name", "value"],
        "verification" => &["hash"],
        "timeouts" => &["httpResponseHeaders", "httpTotal"],
        "security" => &["tls"],
        "tls" => &["certificateAuthorities"],
        "proxy" => &["httpProxy", "httpsProxy", "noProxy"],
        "storage" => &["directories", "disks", "files", "filesystems", "links", "luks", "raid"],
        "disks" => &["device", "partitions", "wipeTable"],
        "partitions" => &[
            "guid",
            "label",
            "number",
            "resize",
            "shouldExist",
            "sizeMiB",
            "startMiB",
            "typeGuid",
            "wipePartitionEntry",
        ],
        "raid" => &["devices", "level", "name", "options", "spares"],
        "luks" => &[
            "cex",
            "clevis",
            "device",
            "discard",
            "keyFile",
            "label",
            "name",
            "openOptions",
            "options",
            "uuid",
            "wipeVolume",
        ],
        "clevis" => &["custom", "tang", "threshold", "tpm2"],
        "custom" => &["config", "needsNetwork", "pin"],
        "tang" => &["advertisement", "thumbprint", "url"],
        "cex" => &["enabled"],
        "filesystems" => {
            &["device", "format", "label", "mountOptions", "options", "path", "uuid", "wipeFilesystem"]
        }
        "files" => &["append", "contents", "group", "mode", "overwrite", "path", "user"],
        "directories" => &["group", "mode", "overwrite", "path", "user"],
        "links" => &["group", "hard", "overwrite", "path", "target", "user"],
        "user" | "group" => OWNER,
        "systemd" => &["units"],
        "units" => &["contents", "dropins", "enabled", "mask", "name"],
        "dropins" => &["contents", "name"],
        "passwd" => &["groups", "users"],
        "users" => &[
            "gecos",
            "groups",
            "homeDir",
            "name",
            "noCreateHome",
            "noLogInit",
            "noUserGroup",
            "passwordHash",
            "primaryGroup",
            "shell",
            "shouldExist",
            "sshAuthorizedKeys",
            "system",
            "uid",
        ],
        "groups" => &["gid", "name", "passwordHash", "shouldExist", "system"],
        "kernelArguments" => &["shouldExist", "shouldNotExist"],
        _ => ROOT,
    }
}

/// The path of an unused field in the form of reports, from the parser's (`$.storage.files.0.colour`), and the reason to
/// refuse it.
pub(super) fn unused(path: &str) -> IgnitionError {
    let mut field = String::new();
    let mut objects: Vec<&str> = Vec::new();
    for name in path.trim_start_matches("$.").split('.') {
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            field.extend(["[", name, "]"]);
            continue;
        }
        if !field.is_empty() {
            field.push('.');
        }
        field.push_str(name);
        objects.push(name);
    }
    let word = objects.pop().unwrap_or_default();
    let known = objects.last().map_or(ROOT, |object| of(object));
    IgnitionError::new(field, unknown_field(word, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_field_is_reported_with_its_path_and_the_nearest_known_field() {
        for (path, field, reason) in [
            ("$.storge", "storge", "unknown field; did you mean storage?"),
            (
                "$.storage.files.12.contnets",
                "storage.files[12].contnets",
                "unknown field; did you mean contents?",
            ),
            (
                "$.systemd.units.0.dropins.1.enabled",
                "systemd.units[0].dropins[1].enabled",
                "unknown field; known are contents, name",
            ),
            ("$.kernelArguments", "kernelArguments", "unknown field of this version; a later one has it"),
        ] {
            let error = unused(path);
            assert_eq!((error.field.as_str(), error.reason.to_string().as_str()), (field, reason), "{path}");
        }
    }

    /// The parser uses every field of the table, so it warns of none.
    #[test]
    fn the_table_has_the_fields_of_the_newest_spec() {
        use serde_json::{Map, Value, json};
        for (object, path) in [
            ("files", "/storage/files"),
            ("directories", "/storage/directories"),
            ("links", "/storage/links"),
            ("filesystems", "/storage/filesystems"),
            ("disks", "/storage/disks"),
            ("raid", "/storage/raid"),
            ("luks", "/storage/luks"),
            ("units", "/systemd/units"),
            ("users", "/passwd/users"),
            ("groups", "/passwd/groups"),
        ] {
            let fields: Map<String, Value> =
                of(object).iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
            let mut names = path.split('/').skip(1);
            let (section, list) = (names.next().unwrap(), names.next().unwrap());
            let mut entry = Value::Object(fields);
            for (name, value) in [
                ("path", json!("/a")),
                ("name", json!("a")),
                ("device", json!("/dev/a")),
                ("level", json!("raid0")),
            ] {
                if entry.get(name).is_some() {
                    entry[name] = value;
                }
            }
            let config = json!({ "ignition": { "version": "3.6.0" }, section: { list: [entry] } });
            let bytes = serde_json::to_vec(&config).unwrap();
            let (_, warnings) = ignition_config::Config::parse_slice(&bytes).unwrap();
            assert!(warnings.is_empty(), "{object}: {warnings:?}");
        }
    }
}
