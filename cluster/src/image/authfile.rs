//! Credentials for a registry, from a file in the form of `podman login` and `docker login`.
//!
//! In: the file. Out: the credentials of the longest name that the reference begins with. No error has a part of the file's content.

use super::error::PullError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_client::Reference;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Longest file.
const LIMIT: u64 = 1 << 20;
/// The registry that a reference without one means, and the name under which `docker login` keeps its credentials.
const DOCKER: (&str, &str) = ("docker.io", "index.docker.io");

#[derive(Deserialize)]
struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, AuthEntry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Deserialize)]
struct AuthEntry {
    #[serde(default)]
    auth: Option<String>,
}

/// The credentials for a reference, or none if the file has no entry for its registry.
///
/// # Errors
/// The file cannot be read or has another form, or a program has the credentials.
pub(super) fn credentials(path: &Path, reference: &Reference) -> Result<RegistryAuth, PullError> {
    let fault = |reason: &str| PullError::AuthFile { path: path.to_owned(), reason: reason.to_owned() };
    let file = File::open(path).map_err(PullError::file("open", path))?;
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text).map_err(PullError::file("read", path))?;
    if text.len() as u64 > LIMIT {
        return Err(fault("is larger than 1 MiB"));
    }
    // The error of the parser may have a part of the text.
    let file: AuthFile = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        fault(&format!("is no file of `podman login`: the JSON is wrong at line {line}, column {column}"))
    })?;
    let wanted = name(reference.registry(), reference.repository());
    let entry = file
        .auths
        .iter()
        .filter(|(key, _)| begins(&wanted, &host_and_path(key)))
        .max_by_key(|(key, _)| host_and_path(key).len());
    let Some(auth) = entry.and_then(|(_, entry)| entry.auth.as_deref()).filter(|auth| !auth.is_empty())
    else {
        if file.store.is_some() || file.helpers.keys().any(|key| begins(&wanted, &host_and_path(key))) {
            return Err(fault(
                "a credential helper has the credentials, and it is not run; use `podman login --authfile FILE`",
            ));
        }
        return Ok(RegistryAuth::Anonymous);
    };
    let decoded = STANDARD.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let decoded =
        decoded.ok_or_else(|| fault("the entry of the registry has an `auth` that is no Base64"))?;
    let (user, password) = decoded
        .split_once(':')
        .ok_or_else(|| fault("the `auth` of the registry has no colon between user and password"))?;
    Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
}

fn name(registry: &str, repository: &str) -> String {
    format!("{}/{repository}", if registry == DOCKER.1 { DOCKER.0 } else { registry })
}

/// A key of the file without its scheme and the path of the old interface.
fn host_and_path(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    match key.strip_prefix(DOCKER.1) {
        Some(rest) => format!("{}{rest}", DOCKER.0),
        None => key.to_owned(),
    }
}

/// Whether a name is below another one.
fn begins(name: &str, with: &str) -> bool {
    name.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(content: &serde_json::Value, reference: &str) -> Result<RegistryAuth, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("auth.json");
        std::fs::write(&path, content.to_string()).unwrap();
        credentials(&path, &reference.parse().unwrap()).map_err(|error| error.to_string())
    }

    fn entry(user: &str) -> serde_json::Value {
        json!({ "auth": STANDARD.encode(format!("{user}:se:cret")) })
    }

    fn basic(user: &str) -> RegistryAuth {
        RegistryAuth::Basic(user.to_owned(), "se:cret".to_owned())
    }

    #[test]
    fn the_longest_name_that_the_reference_begins_with_counts() {
        let file = json!({"auths": {"example.com": entry("all"), "example.com/team": entry("team"), "example.com/te": entry("no")}});
        assert_eq!(found(&file, "example.com/team/os:1"), Ok(basic("team")));
        assert_eq!(found(&file, "example.com/teams/os:1"), Ok(basic("all")));
        assert_eq!(found(&file, "other.example/os:1"), Ok(RegistryAuth::Anonymous));
    }

    #[test]
    fn the_names_that_docker_login_writes_are_known() {
        let file = json!({"auths": {"https://index.docker.io/v1/": entry("docker")}});
        assert_eq!(found(&file, "busybox"), Ok(basic("docker")));
    }

    #[test]
    fn a_file_of_another_form_is_an_error_without_its_content() {
        for file in [
            json!({"auths": {"example.com": {"auth": "not-base64-secret!"}}}),
            json!({"auths": {"example.com": {"auth": STANDARD.encode("secretwithoutcolon")}}}),
            json!({"auths": {"example.com": ["secret"]}}),
            json!({"credHelpers": {"example.com": "secret"}}),
        ] {
            let error = found(&file, "example.com/os:1").unwrap_err();
            assert!(error.contains("auth.json"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
