//! Actors, times, expectations and observations as text.

use super::output::clean;
use sensor_model::{expectation::Expected, observation::Observation, record::Actor, strength::Strength};

/// Longest command line shown, in characters.
const COMMAND_LENGTH: usize = 80;

/// An actor in one line: `alice as uid 0: /usr/bin/vim (vim /etc/x), pid 7, session 3 on pts/0`.
pub fn actor(actor: Option<&Actor>) -> String {
    let Some(actor) = actor else { return "an unknown actor".to_owned() };
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
    for (word, value) in
        [("on", &actor.tty), ("in", &actor.unit), ("container", &actor.container_id), ("pod", &actor.pod_uid)]
    {
        if let Some(value) = value {
            let value: String =
                if word == "container" { value.chars().take(12).collect() } else { value.clone() };
            text.extend([" ", word, " ", &value]);
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

/// The details of an expectation, each with its name. A content is shown by its digest.
pub fn expected(expected: &Expected) -> Vec<(&'static str, String)> {
    expected.details().into_iter().map(|(word, value)| (word, clean(&value))).collect()
}

/// A source and what a verdict by it rests on: `layer 2 of 3, sha256:…; sha256 of a layer`. It may hold control characters.
pub fn source(name: &str, strength: Option<Strength>) -> String {
    strength.map_or_else(|| name.to_owned(), |strength| format!("{name}; {}", strength.as_str()))
}

/// An observation in a few words.
pub fn found(observation: &Observation) -> String {
    clean(&observation.summary())
}
