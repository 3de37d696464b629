//! The picture of the node, for everybody who reports it: the forensic record, the metrics, the status.
//!
//! In: the events of the loop. Out: a hash-chained log, the pages `/metrics`, `/healthz` and `/readyz`, and `status.json`.

pub mod forensic;
pub mod http;
pub mod metrics;
pub mod picture;
pub mod reporter;
pub mod status_file;
