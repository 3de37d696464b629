//! How actors, times and expectations are said to people.

use super::output::clean;
use sensor_model::{
    expectation::{Expected, Owner},
    observation::Observation,
    record::Actor,
};

/// Longest command line shown, in characters.
const COMMAND_LENGTH: usize = 80;

/// Who it was, in one line: `alice as uid 0: /usr/bin/vim (vim /etc/x), pid 7, session 3 on pts/0`.
pub fn actor(actor: Option<&Actor>) -> String {
    let Some(actor) = actor else { return "nobody could be named".to_owned() };
    if actor.holdfast {
        return "holdfast itself".to_owned();
    }
    let mut text = match (&actor.login_user, actor.login_uid) {
        (Some(user), _) => format!("{user} as uid {}", actor.uid),
        (None, Some(login)) => format!("login uid {login} as uid {}", actor.uid),
        (None, None) => format!("uid {} without a login", actor.uid),
    };
    if let Some(exe) = &actor.exe {
        text.extend([": ", exe]);
    }
    if !actor.argv.is_empty() {
        let command = actor.argv.join(" ");
        let mut short: String = command.chars().take(COMMAND_LENGTH).collect();
        if short.len() < command.len() {
            short.push('…');
        }
        text.extend([" (", &short, ")"]);
    }
    text.extend([", pid ", &actor.pid.to_string()]);
    if let Some(session) = actor.session {
        text.extend([", session ", &session.to_string()]);
    }
    for (what, value) in
        [("on", &actor.tty), ("in", &actor.unit), ("container", &actor.container_id), ("pod", &actor.pod_uid)]
    {
        if let Some(value) = value {
            let value: String =
                if what == "container" { value.chars().take(12).collect() } else { value.clone() };
            text.extend([" ", what, " ", &value]);
        }
    }
    clean(&text)
}

/// A record's time to the second.
pub fn time(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => clean(text),
    }
}

/// What is expected, as pairs of a word and its value; never contents.
pub fn expected(expected: &Expected) -> Vec<(&'static str, String)> {
    let owner = |user: &Owner, group: &Owner| format!("{}:{}", one_owner(user), one_owner(group));
    match expected {
        Expected::File(file) => {
            let mut said = Vec::new();
            match &file.content {
                Some(content) => {
                    let text = format!("sha256:{} ({} bytes)", hex::encode(content.sha256), content.size);
                    said.push(("content", text));
                }
                None => said.push(("content", "not declared".to_owned())),
            }
            said.push(("mode", format!("{:04o}", file.mode)));
            said.push(("owner", owner(&file.user, &file.group)));
            said
        }
        Expected::Directory(directory) => vec![
            ("mode", format!("{:04o}", directory.mode)),
            ("owner", owner(&directory.user, &directory.group)),
        ],
        Expected::Link(link) => {
            let kind = if link.hard { "hard link to" } else { "link to" };
            vec![(kind, clean(&link.target.to_string_lossy()))]
        }
        Expected::Unit(unit) => {
            let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
            let said = [("enabled", unit.enabled), ("masked", unit.masked)];
            said.into_iter().filter_map(|(word, value)| Some((word, yes(value?)))).collect()
        }
        Expected::ClosedDirectory(closed) => {
            let names = if closed.names.is_empty() { "none".to_owned() } else { closed.names.join(", ") };
            let what = closed
                .suffix
                .as_deref()
                .map_or_else(String::new, |suffix| format!(" (of those in *{suffix})"));
            vec![("names", clean(&format!("{names}{what}")))]
        }
        Expected::AuthorizedKeys(keys) => {
            let declared = keys.keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let declared = if declared.is_empty() { "none".to_owned() } else { declared };
            vec![("keys", clean(&declared))]
        }
        Expected::KernelArguments(declared) => vec![("among others", clean(&declared.arguments.join(" ")))],
        Expected::OsImage(declared) => vec![("image", clean(&declared.image))],
    }
}

fn one_owner(owner: &Owner) -> String {
    match owner {
        Owner::Id(id) => id.to_string(),
        Owner::Name(name) => clean(name),
        Owner::Undeclared => "not declared".to_owned(),
    }
}

/// What a thing is called.
pub fn kind(expected: &Expected) -> &'static str {
    match expected {
        Expected::File(_) => "file",
        Expected::Directory(_) => "directory",
        Expected::Link(_) => "link",
        Expected::Unit(_) => "unit",
        Expected::ClosedDirectory(_) => "closed directory",
        Expected::AuthorizedKeys(_) => "authorized keys",
        Expected::KernelArguments(_) => "kernel arguments",
        Expected::OsImage(_) => "OS image",
    }
}

/// What is there, in a few words.
pub fn found(observation: &Observation) -> String {
    match observation {
        Observation::Missing => "missing".to_owned(),
        Observation::Unreadable { error } => clean(error),
        Observation::Names { names, .. } => {
            let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            clean(&format!("directory with {names}"))
        }
        Observation::Unit(unit) => {
            let state = unit.file_state.as_deref().unwrap_or("not found");
            clean(state)
        }
        Observation::KernelArguments { arguments } => clean(&arguments.join(" ")),
        Observation::Os(booted) => {
            let commit = booted.checksum.as_ref().map(|sum| format!(" (commit {sum})")).unwrap_or_default();
            clean(&format!("{}{commit}", booted.name()))
        }
        Observation::Object(object) => {
            let owner = |name: &Option<String>, id: u32| name.clone().unwrap_or_else(|| id.to_string());
            let what = match (&object.target, object.sha256) {
                (Some(target), _) => format!("link to {}", target.display()),
                (None, Some(sum)) => format!("sha256:{} ({} bytes)", hex::encode(sum), object.size),
                (None, None) => {
                    let kind = serde_json::to_value(object.file_type).unwrap_or_default();
                    kind.as_str().unwrap_or("object").replace('-', " ")
                }
            };
            let (user, group) = (owner(&object.user, object.uid), owner(&object.group, object.gid));
            clean(&format!("{what}, mode {:04o}, owner {user}:{group}", object.mode))
        }
    }
}
