//! What the daemon reports: the forensic log, and from one picture of the node the metrics and the status.
//!
//! In: the reports of the loop. Out: a hash-chained log, the pages `/metrics`, `/healthz` and `/readyz`, and `status.json`.
//!
//! | who reports | reads |
//! |---|---|
//! | the daemon itself | [`picture::Picture`], which `reporter` keeps: verdict, open drifts, gaps, state of the config |
//! | another process on the node | [`last_status::last_status`] for the state now, [`forensic::Follower`] for each record |
//! | the node's reporter | the [`socket`]: the status, the records and the pages, without rights on the files |
//!
//! Both give the types of [`sensor_model::status`] and [`sensor_model::record`]. A reporter needs nothing else of this crate.
//!
//! `reporter` implements the trait of the loop. It gives each report to `picture` at once, which counts it in `metrics`. At the
//! end of a turn it gives the records to the `forensic` log, whose writer syncs them in a thread. It writes the picture to
//! `status_file`, and gives it to `socket` once the log has the records. `http` serves the pages, and `socket` serves the reporter
//! of the node. `last_status` and `forensic::LogPlace` read the files again, for commands.

pub mod forensic;
pub mod http;
pub mod last_status;
pub mod metrics;
pub mod picture;
pub mod reporter;
pub mod socket;
pub mod status_file;
