//! Completion of `kubectl holdfast`, as kubectl asks for it.
//!
//! In: the words after `kubectl holdfast`, of which the last one is not complete. Out: lines with what it may become, and a last line that tells
//! the shell whether files may follow. For that kubectl (1.26 and later) runs the program `kubectl_complete-holdfast` of the `PATH`. It reads the
//! words as `kubectl __complete` does.

use super::access::Access;
use super::{PROGRAM, Plugin};
use crate::api::DriftReport;
use clap::{Arg, ArgAction, Command, CommandFactory as _, Parser as _};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use std::time::Duration;

/// The name under which kubectl asks for completions.
pub const COMPLETER: &str = "kubectl_complete-holdfast";
/// Longest time until the API server has named the nodes. A shell waits for it.
pub const COMPLETION_TIME: Duration = Duration::from_secs(3);
/// The last line where files may follow (`ShellCompDirectiveDefault` of the library of kubectl).
const FILES: &str = ":0";
/// The last line where no file may follow (`ShellCompDirectiveNoFileComp`). Alone it is the answer of a completion that found nothing in time.
pub const NO_FILES: &str = ":4";
/// The argument that is the name of a node.
const NODE: &str = "node";
/// The argument that is a file of this machine. A path of `who` is one of the node.
const KUBECONFIG: &str = "kubeconfig";

/// What the last word may become.
#[derive(Debug, PartialEq, Eq)]
enum Candidates {
    /// One of these, each with its explanation.
    Words(Vec<(String, String)>),
    /// The name of a node.
    Nodes,
    /// A file of this machine.
    Files,
}

/// The lines for kubectl.
pub async fn complete(words: &[String]) -> String {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let found = match candidates(before, last) {
        Candidates::Words(words) => words,
        Candidates::Nodes => nodes(before).await.into_iter().map(|node| (node, String::new())).collect(),
        Candidates::Files => return format!("{FILES}\n"),
    };
    let mut lines = String::new();
    for (word, about) in found.into_iter().filter(|(word, _)| word.starts_with(last)) {
        lines.push_str(&word);
        if !about.is_empty() {
            lines.extend(["\t", &about]);
        }
        lines.push('\n');
    }
    lines + NO_FILES + "\n"
}

/// What may follow these words. `last` is the beginning of it.
fn candidates(before: &[String], last: &str) -> Candidates {
    let mut root = Plugin::command();
    root.build();
    let mut scope = &root;
    let mut values = 0;
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if let Some(option) = option_of(scope, word) {
            // Its value is the next word.
            if takes_value(option) && !word.contains('=') && words.next().is_none() {
                return of_value(option);
            }
        } else if let Some(command) = scope.find_subcommand(word) {
            scope = command;
        } else if !word.starts_with('-') {
            values += 1;
        }
    }
    if last.starts_with('-') {
        let options = scope.get_arguments().filter(|option| !option.is_hide_set());
        return Candidates::Words(options.filter_map(option_word).collect());
    }
    if scope.has_subcommands() {
        let commands = scope.get_subcommands().filter(|command| !command.is_hide_set());
        let about = |command: &Command| line(command.get_about().map(ToString::to_string));
        return Candidates::Words(commands.map(|one| (one.get_name().to_owned(), about(one))).collect());
    }
    scope.get_positionals().nth(values).map_or_else(|| Candidates::Words(Vec::new()), of_value)
}

/// The option that a word names.
fn option_of<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or_default();
    command.get_arguments().find(|option| match name.strip_prefix("--") {
        Some(long) => option.get_long() == Some(long),
        None => {
            option.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.to_string().as_str()))
        }
    })
}

fn takes_value(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
}

fn option_word(option: &Arg) -> Option<(String, String)> {
    Some((format!("--{}", option.get_long()?), line(option.get_help().map(ToString::to_string))))
}

/// The values of an argument.
fn of_value(argument: &Arg) -> Candidates {
    let values = argument.get_possible_values();
    if argument.get_id() == NODE {
        Candidates::Nodes
    } else if argument.get_id() == KUBECONFIG {
        Candidates::Files
    } else {
        let about = |value: &clap::builder::PossibleValue| line(value.get_help().map(ToString::to_string));
        Candidates::Words(values.iter().map(|one| (one.get_name().to_owned(), about(one))).collect())
    }
}

/// An explanation in one line.
fn line(about: Option<String>) -> String {
    about.unwrap_or_default().replace(['\t', '\n'], " ")
}

/// The nodes with a report, for the user of these words. None if they cannot be had: a shell shows no error.
async fn nodes(before: &[String]) -> Vec<String> {
    let listed = async {
        let access = Access::without_questions(access(before)?).await.ok()?;
        let reports: Api<DriftReport> = Api::all(access.client.clone());
        reports.list_metadata(&ListParams::default()).await.ok()
    };
    let reports = listed.await;
    reports.map(|list| list.items.iter().map(ResourceExt::name_any).collect()).unwrap_or_default()
}

/// The options about the API server among these words.
fn access(before: &[String]) -> Option<super::AccessOptions> {
    // A command without arguments takes the same options. The command's own are not among them.
    let mut root = Plugin::command();
    root.build();
    let mut kept = vec![PROGRAM.to_owned(), "status".to_owned()];
    let mut words = before.iter();
    while let Some(word) = words.next() {
        let Some(option) = option_of(&root, word) else { continue };
        kept.push(word.clone());
        if takes_value(option) && !word.contains('=') {
            kept.extend(words.next().cloned());
        }
    }
    Plugin::try_parse_from(kept).ok().map(|plugin| plugin.arguments.access)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (last, before) = words.split_last().unwrap();
        match candidates(before, last) {
            Candidates::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            Candidates::Nodes => vec!["NODES".to_owned()],
            Candidates::Files => vec!["FILES".to_owned()],
        }
    }

    #[test]
    fn each_place_of_a_command_line_has_its_own_words() {
        let commands = names("");
        for command in ["status", "plan", "diff", "who", "explain", "log", "completion"] {
            assert!(commands.contains(&command.to_owned()), "{commands:?}");
        }
        for (line, wanted) in [
            ("diff ", "NODES"),
            ("-n other diff ", "NODES"),
            ("diff -o yaml n", "NODES"),
            ("who -ojson ", "NODES"),
            ("--kubeconfig ", "FILES"),
        ] {
            assert_eq!(names(line), [wanted], "{line}");
        }
        assert_eq!(names("status "), Vec::<String>::new());
        for line in ["diff n1 ", "who n1 ", "--context ", "log n1 --lines "] {
            assert_eq!(names(line), Vec::<String>::new(), "{line}");
        }
        assert!(names("status -o ").contains(&"yaml".to_owned()));
        assert!(names("completion ").contains(&"bash".to_owned()));
        let options = names("diff n1 --");
        assert!(["--report", "--context", "--output"].iter().all(|one| options.contains(&(*one).to_owned())));
        assert!(!names("log n1 --").contains(&"--report".to_owned()));
    }

    #[tokio::test]
    async fn only_words_with_the_same_beginning_are_given_and_the_shell_adds_no_files() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        let lines = complete(&words("di")).await;
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(lines.starts_with("diff\tShow every thing") && lines.ends_with("\n:4\n"), "{lines}");
        assert_eq!(complete(&words("who n1 /e")).await, ":4\n");
        assert_eq!(complete(&words("--kubeconfig k")).await, ":0\n");
        assert!(complete(&[]).await.contains("status\t"));
    }

    #[test]
    fn the_options_about_the_api_server_are_found_among_others() {
        let words: Vec<String> =
            ["diff", "-o", "json", "--context", "c", "--report"].map(str::to_owned).into();
        let found = format!("{:?}", access(&words).unwrap());
        assert!(found.contains("context: Some(\"c\")"), "{found}");
    }
}
