//! Writes the documents that are generated from the command line's definition and from the types of what it prints.
//!
//! In: a directory. Out: `cli.md`, `man/*.1`, `completions/*` and `schemas/*.schema.json` in it. `cargo xtask generate` runs
//! it. It is an example, so that the product does not contain it.

use clap::{Arg, ArgAction, Command, ValueEnum as _};
use clap_complete::Shell;
use holdfast::cli::{command, schemas};
use std::{error::Error, fmt::Write as _, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(std::env::args_os().nth(1).ok_or("give a directory to write to")?);
    let [man, completions, made] = ["man", "completions", "schemas"].map(|name| directory.join(name));
    for directory in [&man, &completions, &made] {
        fs::create_dir_all(directory)?;
    }
    for (name, schema) in schemas::all() {
        let text = serde_json::to_string_pretty(&schema)?;
        fs::write(made.join(format!("{name}.schema.json")), text + "\n")?;
    }
    // The version without the hash of the kernel programs, which differs between builds.
    let mut all = command().version(env!("CARGO_PKG_VERSION"));
    all.build();
    fs::write(directory.join("cli.md"), markdown(&all)?)?;
    clap_mangen::generate_to(all, &man)?;
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut command(), "holdfast", &completions)?;
    }
    Ok(())
}

fn markdown(all: &Command) -> Result<String, std::fmt::Error> {
    let mut text = String::from(
        "# Command line\n\nMade by `cargo xtask generate` from the definition of the command line; not edited by hand.\n",
    );
    section(&mut text, all, "")?;
    Ok(text)
}

/// A command, its arguments, and its subcommands.
fn section(text: &mut String, command: &Command, above: &str) -> std::fmt::Result {
    let name = format!("{above}{}", command.get_name());
    writeln!(text, "\n## {name}\n")?;
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        writeln!(text, "{about}\n")?;
    }
    let usage = command.clone().render_usage().to_string();
    writeln!(text, "```text\n{}\n```", usage.trim_start_matches("Usage: "))?;
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| {
            !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
        })
        .collect();
    if !arguments.is_empty() {
        writeln!(text, "\n| argument | what it does | default |\n|---|---|---|")?;
    }
    for argument in arguments {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<String> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
        let default = if takes_value && !defaults.is_empty() {
            format!("`{}`", defaults.join(" "))
        } else {
            String::new()
        };
        let words: Vec<String> =
            argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        let words =
            if takes_value && !words.is_empty() { format!(": {}", words.join(", ")) } else { String::new() };
        writeln!(text, "| `{argument}` | {}{words} | {default} |", help.replace('|', "\\|"))?;
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
    {
        section(text, inner, &format!("{name} "))?;
    }
    Ok(())
}
