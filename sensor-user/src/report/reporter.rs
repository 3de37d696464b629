//! The daemon's reporter, which implements the loop's trait [`Reports`].
//!
//! In: reports, and the records of each turn. Out: each report goes to the picture at once. At the end of a turn the records go to
//! the forensic log, and the picture to `status.json`. The pages of metrics and health run in their own thread, and so does
//! the reporter's socket.

use super::forensic::{self, ForensicError, ForensicLog, LogLimits, LogWriter};
use super::http::{self, Pages, Readiness};
use super::metrics::Metrics;
use super::picture::Picture;
use super::socket::{self, Answers, ReporterOrders, ReporterPeer, StatusPublisher};
use super::status_file::{self, StatusFile};
use crate::agent::open_drift::OpenDrifts;
use crate::agent::reports::{
    AgentReport, DaemonFacts, NodeCounts, OpenedReports, ReadinessSubject, ReportError, Reports,
};
use crate::clock::Clock;
use sensor_model::record::Record;
use sensor_model::status::NodeStatus;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use tokio::sync::watch;

/// The subject of the page `/readyz` while the forensic log cannot be written.
const LOG: &str = "forensic-log";

/// Where the reports are written.
#[derive(Debug, Clone)]
pub struct Places {
    /// Directory of the forensic log.
    pub log: PathBuf,
    /// Directory of the note that names the log's last entry.
    pub state: PathBuf,
    /// Directory of the status file.
    pub run: PathBuf,
    /// Address of the pages; `None` for none.
    pub listen: Option<SocketAddr>,
    /// Who may use the reporter's socket in the run directory; `None` for no socket.
    pub reporter: Option<ReporterPeer>,
    /// What the reporter may order.
    pub orders: ReporterOrders,
}

/// A report cannot be written or shown.
#[derive(Debug, thiserror::Error)]
enum ReporterError {
    /// Another process listens on the address, or the host does not have it.
    #[error("cannot listen on {address} for the pages of metrics and health: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    /// The thread of the pages cannot be started.
    #[error("cannot start the thread of the pages of metrics and health: {0}")]
    Thread(io::Error),
    /// The socket cannot be made, or not for the reporter.
    #[error("cannot make the reporter's socket {}: {source}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    /// The thread of the socket cannot be started.
    #[error("cannot start the thread of the reporter's socket: {0}")]
    SocketThread(io::Error),
    /// The log cannot be used.
    #[error(transparent)]
    Forensic(#[from] ForensicError),
    /// The thread that writes the log has panicked.
    #[error("the thread that writes the forensic log ended early: {0}")]
    Join(#[from] tokio::task::JoinError),
}

/// Writes and shows the reports of the loop.
#[derive(Debug)]
pub struct Reporter {
    places: Places,
    clock: Arc<dyn Clock>,
    picture: Picture,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    status: StatusFile,
    /// `None` before the log is open, and after it is closed.
    writer: Option<LogWriter>,
    listener: Option<TcpListener>,
    bound: Option<UnixListener>,
    /// The side of the loop of the reporter's socket; `None` without a socket.
    publisher: Option<StatusPublisher>,
    /// The newest status, while the reporter does not have it.
    unpublished: Option<NodeStatus>,
    servers: Vec<Server>,
}

/// A thread that serves peers.
#[derive(Debug)]
struct Server {
    name: &'static str,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Reporter {
    /// A reporter that writes nothing before [`Reports::open`].
    pub fn new(places: Places, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        Self {
            status: StatusFile::new(&places.run),
            places,
            clock,
            picture: Picture::default(),
            metrics,
            readiness: Readiness::default(),
            writer: None,
            listener: None,
            bound: None,
            publisher: None,
            unpublished: None,
            servers: Vec::new(),
        }
    }

    /// The picture of the node.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Why the node is not ready, for the pages.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    fn open_log(&mut self, facts: DaemonFacts) -> Result<OpenedReports, ReporterError> {
        let beat = facts.beat;
        let open = forensic::open_drifts(&self.places.log).unwrap_or_else(|error| {
            // A log that does not exist yet is no error; for any other reason, opening it fails below.
            tracing::warn!(%error, "Cannot read the open drifts from the forensic log: they are reported anew.");
            BTreeMap::new()
        });
        let mut log = ForensicLog::open(
            &self.places.log,
            LogLimits::default(),
            Arc::clone(&self.clock),
            facts.boot_id.clone(),
            Arc::clone(&self.metrics),
        )?;
        self.picture.open(facts, open, &self.metrics);
        let log_is_cut = log.note_end(&self.places.state).is_some();
        self.not_verified_yet();
        let pages = Pages { metrics: Arc::clone(&self.metrics), readiness: self.readiness.clone() };
        if let Some(listener) = self.listener.take() {
            let (stop, stopped) = watch::channel(false);
            let thread =
                http::serve_in_thread(listener, pages.clone(), stopped).map_err(ReporterError::Thread)?;
            self.servers.push(Server { name: "pages", stop, thread });
        }
        if let (Some(listener), Some(peer)) = (self.bound.take(), self.places.reporter.clone()) {
            let (publisher, view) = socket::channel(Arc::clone(&self.clock), beat);
            self.publisher = Some(publisher);
            let (sender, newest) = watch::channel(None);
            log.announce_to(sender);
            let answers = Answers { published: view, newest, log: self.places.log.clone(), pages };
            let orders = self.places.orders.clone();
            let (stop, stopped) = watch::channel(false);
            let thread = socket::serve_in_thread(listener, peer, answers, orders, stopped)
                .map_err(ReporterError::SocketThread)?;
            self.servers.push(Server { name: "reporter", stop, thread });
        }
        self.writer = Some(LogWriter::new(log));
        Ok(OpenedReports { log_is_cut })
    }

    /// Not ready before the first full verification with the config of this run.
    fn not_verified_yet(&self) {
        self.readiness
            .not_ready(ReadinessSubject::Verification.name(), "the first full verification is not finished");
    }

    /// Not ready while the forensic log cannot be written.
    fn show_log(&self) {
        match self.writer.as_ref().and_then(LogWriter::degraded) {
            Some(reason) => self.readiness.not_ready(LOG, reason),
            None => self.readiness.ready(LOG),
        }
    }

    fn write_status(&mut self) {
        let status = self.picture.status(&*self.clock);
        self.status.write(self.picture.counts(), &status_file::text(&status));
        self.publish_after_log(status);
    }

    /// Gives the reporter the status as soon as the log has the records that wait. On a busy CPU the reporter's work would otherwise delay them.
    fn publish_after_log(&mut self, status: NodeStatus) {
        self.unpublished = Some(status);
        if !self.writer.as_ref().is_some_and(LogWriter::is_busy) {
            self.publish();
        }
    }

    /// Gives the reporter the newest status, unless it has it.
    fn publish(&mut self) {
        if let (Some(status), Some(publisher)) = (self.unpublished.take(), &mut self.publisher) {
            publisher.publish(socket::bounded_text(status));
        }
    }

    async fn close_log(&mut self) -> Result<(), ReporterError> {
        self.publish();
        for Server { name, stop, thread } in std::mem::take(&mut self.servers) {
            stop.send_replace(true);
            // Connections have a few seconds to finish.
            if tokio::task::spawn_blocking(move || thread.join()).await?.is_err() {
                tracing::error!(thread = name, "A thread that serves reports has panicked.");
            }
        }
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let mut log = writer.finish().await?;
        log.close();
        let lost = log.pending().count();
        if lost > 0 {
            let reason = log.degraded();
            tracing::error!(lost, reason, "Records of the forensic log could not be written and are lost.");
        }
        Ok(())
    }
}

impl Reports for Reporter {
    fn prepare(&mut self) -> Result<(), ReportError> {
        if let Some(peer) = &self.places.reporter {
            let run = &self.places.run;
            // The image of the reporter gives it a group of its user's number.
            let bound = socket::bind(run, peer.uid).map_err(|source| {
                ReportError::new(ReporterError::Socket { path: socket::path(run), source })
            })?;
            self.bound = Some(bound);
        }
        let Some(address) = self.places.listen else { return Ok(()) };
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = bound.map_err(|source| ReportError::new(ReporterError::Listen { address, source }))?;
        self.listener = Some(listener);
        Ok(())
    }

    fn open(&mut self, facts: DaemonFacts) -> Result<OpenedReports, ReportError> {
        self.open_log(facts).map_err(ReportError::new)
    }

    fn report(&mut self, report: AgentReport<'_>) {
        match &report {
            AgentReport::RunBegan(run) => {
                self.status.outdate();
                for subject in [ReadinessSubject::Canary, ReadinessSubject::Config] {
                    self.readiness.ready(subject.name());
                }
                self.not_verified_yet();
                if let Some(reason) = &run.refused {
                    self.readiness.not_ready(ReadinessSubject::Config.name(), reason.as_str());
                }
            }
            AgentReport::RunEnded => self.not_verified_yet(),
            AgentReport::NotReady(subject, reason) => {
                self.readiness.not_ready(subject.name(), reason.as_str());
            }
            AgentReport::Ready(subject) => self.readiness.ready(subject.name()),
            _ => {}
        }
        self.picture.take(report, &self.metrics, &*self.clock);
    }

    fn drifts(&self) -> &OpenDrifts {
        self.picture.drifts()
    }

    fn end_turn(&mut self, records: &mut Vec<Record>, counts: &NodeCounts) {
        if let Some(writer) = &mut self.writer {
            writer.append(records.drain(..));
        }
        self.picture.count(counts);
        let has_changed = self.picture.has_changed();
        if has_changed {
            self.status.outdate();
        }
        // A thing can get its verdict without a report, which changes only the counts.
        if self.status.is_due(self.picture.counts(), !counts.is_verifying) {
            self.write_status();
        } else if has_changed && self.status.has_failed() && self.publisher.is_some() {
            self.publish_after_log(self.picture.status(&*self.clock));
        }
        self.show_log();
    }

    fn beat(&mut self, counts: &NodeCounts) {
        if let Some(publisher) = &self.publisher {
            publisher.beat();
        }
        if self.status.beat() {
            self.picture.count(counts);
            self.write_status();
        }
        // A disk that hangs does not keep a status from the reporter for longer than this.
        self.publish();
    }

    fn is_full(&self) -> bool {
        self.writer.as_ref().is_some_and(LogWriter::is_full)
    }

    fn poll_progress(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReportError>> {
        let Some(writer) = &mut self.writer else { return Poll::Pending };
        let progress = std::task::ready!(writer.poll_progress(context));
        if !writer.is_busy() {
            self.publish();
        }
        self.show_log();
        Poll::Ready(progress.map_err(|error| ReportError::new(ReporterError::Join(error))))
    }

    fn close(&mut self) -> Pin<Box<dyn Future<Output = Result<(), ReportError>> + '_>> {
        Box::pin(async { self.close_log().await.map_err(ReportError::new) })
    }
}

#[cfg(test)]
#[path = "reporter_tests.rs"]
mod tests;
