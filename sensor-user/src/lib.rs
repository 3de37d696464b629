//! Holdfast's daemon and command line, as a library of pipeline stages.

pub mod agent;
pub mod apply;
pub mod attribution;
pub mod bounded;
pub mod cli;
pub mod clock;
pub mod event;
pub mod fanotify;
pub mod forensic;
pub mod http;
pub mod kernel;
pub mod labels;
pub mod metrics;
pub mod observation;
pub mod repair;
pub mod systemd;
