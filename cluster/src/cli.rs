//! The command line of `holdfast-cluster`.
//!
//! In: arguments. Out: a command that runs, and an exit code.

use crate::controller::{self, ControllerOptions};
use crate::image::{self, Platform, Progress, PullOptions, Pulled};
use crate::listen::{PROBES_PORT, PageAddress, SECURE_PORT};
use crate::node::{self, Mode, Options};
use crate::plugin::{self, Plugin, PluginArguments, PluginError, Screen};
use crate::publish::ReporterPlace;
use crate::remove::{self, UnconfirmedPod};
use crate::secure::CertificateFiles;
use crate::text::count;
use clap::{Parser, Subcommand};
use sensor_model::socket::SOCKET;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The cluster's side of Holdfast.
#[derive(Debug, Parser)]
#[command(name = "holdfast-cluster", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Report what the sensor of this node finds to the API server, until a signal ends it.
    Node(NodeCommand),
    /// Write to each `DriftPolicy` which nodes have taken it, until a signal ends it. One in a cluster is enough.
    Controller(ControllerCommand),
    /// Remove what reporters wrote to the API, with the rights of an admin: conditions, annotations and taints of all Nodes, Leases and
    /// `DriftReports`. The last reporter must have ended.
    Remove(RemoveCommand),
    /// Images of registries.
    #[command(subcommand)]
    Image(ImageCommand),
    /// The same as `kubectl holdfast`: the state of nodes, and the log of one.
    Kubectl(PluginArguments),
}

/// Arguments of `remove`.
#[derive(Debug, clap::Args)]
pub struct RemoveCommand {
    /// Namespace of the reporters' pods and Leases.
    #[arg(long, default_value = "holdfast-system", value_name = "NAMESPACE")]
    namespace: String,
}

impl RemoveCommand {
    async fn run(self) -> anyhow::Result<()> {
        let removed = remove::remove(&remove::client().await?, &self.namespace).await?;
        let mut out = std::io::stdout().lock();
        for UnconfirmedPod { pod, node } in &removed.unconfirmed {
            writeln!(
                out,
                "note: the node {node} is off, so the end of its pod {pod} is not confirmed; its Node is cleaned, and its kubelet ends the pod \
                 at its next start"
            )?;
        }
        for removal in &removed.removals {
            let what = if removal.removed.is_empty() {
                "removed".to_owned()
            } else {
                format!("removed {}", removal.removed.join(", "))
            };
            writeln!(out, "{}: {what}", removal.object)?;
        }
        if removed.removals.is_empty() {
            writeln!(out, "Nothing of Holdfast was there.")?;
        }
        Ok(())
    }
}

/// What to do with an image.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Write the image of a registry into a directory, as an OCI image layout. `holdfast image index` reads it there.
    Pull(PullCommand),
}

/// Arguments of `image pull`.
#[derive(Debug, clap::Args)]
pub struct PullCommand {
    /// The image: `REGISTRY/REPOSITORY:TAG` or `REGISTRY/REPOSITORY@sha256:DIGEST`.
    #[arg(value_name = "REF")]
    reference: String,
    /// An empty directory, one that does not exist, or an image layout, whose other images stay.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Platform of an image that exists for several. [default: Linux on the architecture of this program]
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    platform: Option<Platform>,
    /// File with credentials, as `podman login --authfile FILE` writes it.
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
    /// Certificate in PEM of an authority that is trusted besides those of the system.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Use HTTP without TLS. Digests are verified all the same, but a tag may lead to another image, and credentials can be read.
    #[arg(long)]
    plain_http: bool,
    /// Output format.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t)]
    format: PullFormat,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum PullFormat {
    /// For people to read.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl PullCommand {
    async fn run(self) -> anyhow::Result<()> {
        let directory = self.directory.clone();
        let options = PullOptions {
            reference: self.reference,
            directory: self.directory,
            platform: self.platform.unwrap_or_else(Platform::here),
            authfile: self.authfile,
            authority: self.ca,
            is_plain: self.plain_http,
        };
        let mut shown = ShownProgress::new();
        let pulled = image::pull(options, |progress| shown.show(progress)).await;
        shown.end();
        let pulled = pulled?;
        let mut out = std::io::stdout().lock();
        match self.format {
            PullFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&pulled)?)?,
            PullFormat::Text => {
                let Pulled { reference, digest, manifest, layers, bytes, transferred } = &pulled;
                let layers = count(i64::try_from(*layers)?, "layer");
                writeln!(out, "{reference} is in {}: {digest}", directory.display())?;
                if manifest != digest {
                    writeln!(out, "manifest of the platform: {manifest}")?;
                }
                writeln!(
                    out,
                    "{layers}, {}, {} of it transferred",
                    mebibytes(*bytes),
                    mebibytes(*transferred)
                )?;
            }
        }
        Ok(())
    }
}

/// Progress on a terminal: one line, which is written anew. Elsewhere a line for each blob.
struct ShownProgress {
    is_terminal: bool,
    last: Option<(usize, Instant)>,
}

impl ShownProgress {
    fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), last: None }
    }

    fn show(&mut self, progress: Progress) {
        const EVERY: Duration = Duration::from_millis(100);
        let Progress { number, of, bytes, size } = progress;
        let is_news = self.last.is_none_or(|(last, at)| {
            last != number || (self.is_terminal && (at.elapsed() >= EVERY || bytes == size))
        });
        if !is_news {
            return;
        }
        self.last = Some((number, Instant::now()));
        let mut notes = std::io::stderr().lock();
        // Without a place for notes the pull goes on.
        let _ = if self.is_terminal {
            write!(notes, "\r\x1b[Kblob {number} of {of}: {} of {}", mebibytes(bytes), mebibytes(size))
        } else {
            writeln!(notes, "blob {number} of {of}: {}", mebibytes(size))
        };
    }

    fn end(&self) {
        if self.is_terminal && self.last.is_some() {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}

/// A number of bytes for people.
fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// Arguments of `controller`.
#[derive(Debug, clap::Args)]
pub struct ControllerCommand {
    /// Address of the health pages. [default: port 9465 of all addresses, IPv6 and IPv4]
    #[arg(long, value_name = "ADDRESS:PORT")]
    probes: Option<SocketAddr>,
}

/// Arguments of `node`.
#[derive(Debug, clap::Args)]
pub struct NodeCommand {
    /// Name of the Node that this process runs on.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: String,
    /// Namespace of the Lease that shows that the reporter lives.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    namespace: String,
    /// Name of this reporter in its Lease and its Events. [default: the name of the Node]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    name: Option<String>,
    /// The sensor's socket.
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    socket: PathBuf,
    /// Address of the health pages. [default: port 9465 of all addresses, IPv6 and IPv4]
    #[arg(long, value_name = "ADDRESS:PORT")]
    probes: Option<SocketAddr>,
    /// What the reporter may do. The sensor's own `--mode` must be the same.
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    mode: Mode,
    /// Address of the pages over TLS: the metrics, and what `kubectl holdfast` reads. [default: port 9466 of all addresses, IPv6 and
    /// IPv4]
    #[arg(long, value_name = "ADDRESS:PORT")]
    secure: Option<SocketAddr>,
    /// Certificate of the pages over TLS in PEM, read again when it changes. [default: a self-signed one]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of `--tls-cert` in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How long the sensor may be silent before the node's state is unknown.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    grace: u64,
}

impl NodeCommand {
    fn options(self) -> Options {
        Options {
            mode: self.mode,
            place: ReporterPlace {
                holder: self.name.unwrap_or_else(|| self.node_name.clone()),
                node: self.node_name,
                namespace: self.namespace,
            },
            socket: self.socket,
            probes: PageAddress::of(self.probes, PROBES_PORT),
            secure: PageAddress::of(self.secure, SECURE_PORT),
            certificate: self
                .tls_cert
                .zip(self.tls_key)
                .map(|(certificate, key)| CertificateFiles { certificate, key }),
            grace: Duration::from_secs(self.grace),
        }
    }
}

/// Runs a command until it ends. Gives its exit code.
///
/// # Errors
/// Why it cannot run.
pub fn run(command: Command) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Node(node) => runtime.block_on(node::run(node.options()))?,
        Command::Controller(ControllerCommand { probes }) => {
            let probes = PageAddress::of(probes, PROBES_PORT);
            runtime.block_on(controller::run(ControllerOptions { probes }))?;
        }
        Command::Remove(remove) => runtime.block_on(remove.run())?,
        Command::Image(ImageCommand::Pull(pull)) => runtime.block_on(pull.run())?,
        Command::Kubectl(arguments) => {
            let (mut out, mut notes) = (std::io::stdout().lock(), std::io::stderr().lock());
            let mut screen = Screen::new(&mut out, &mut notes).on_terminal(std::io::stdout().is_terminal());
            return Ok(runtime.block_on(plugin::run_command(arguments, &mut screen))?);
        }
    }
    Ok(plugin::IN_SYNC)
}

/// Runs `kubectl holdfast`. Gives its exit code.
///
/// # Errors
/// Why there is no answer.
pub fn run_plugin(plugin: Plugin) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut out, mut notes) = (std::io::stdout().lock(), std::io::stderr().lock());
    let mut screen = Screen::new(&mut out, &mut notes).on_terminal(std::io::stdout().is_terminal());
    let answer: Result<u8, PluginError> = runtime.block_on(plugin::run(plugin, &mut screen));
    Ok(answer?)
}

/// Prints what the last of these words may become, for kubectl. A program that gets a token, or a name server, may take longer than a shell
/// should wait: the process then ends without an answer about nodes.
///
/// # Errors
/// The answer cannot be written.
pub fn complete_plugin(words: Vec<String>) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(runtime.block_on(plugin::complete(&words))));
    let lines =
        receiver.recv_timeout(plugin::COMPLETION_TIME).unwrap_or_else(|_| format!("{}\n", plugin::NO_FILES));
    std::io::stdout().lock().write_all(lines.as_bytes()).map_err(PluginError::Output)?;
    Ok(plugin::IN_SYNC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// The options of a reporter with these arguments.
    fn options(more: &[&str]) -> Options {
        let line = ["holdfast-cluster", "node", "--node-name", "n1", "--namespace", "x"];
        let Command::Node(node) = Cli::parse_from(line.iter().chain(more)).command else {
            panic!("another command")
        };
        node.options()
    }

    #[test]
    fn pages_are_at_all_addresses_unless_an_option_names_one() {
        let all = options(&[]);
        assert_eq!(all.probes, PageAddress::All { port: 9465 });
        assert_eq!(all.secure, PageAddress::All { port: 9466 });
        let given = options(&["--probes", "0.0.0.0:1", "--secure", "[::1]:2"]);
        assert_eq!(given.probes, PageAddress::Given("0.0.0.0:1".parse().unwrap()));
        assert_eq!(given.secure, PageAddress::Given("[::1]:2".parse().unwrap()));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        Plugin::command().debug_assert();
    }
}
