//! What the daemon reads of a host that others write: mount table, process status, accounts, unit files, the kernel's
//! types, events of fanotify.
//!
//! Bytes or text in, plain values out. Whoever may mount, name a process or edit a file decides what is in them, so
//! every input has an answer, lines that are none are passed over, and each parser is a fuzz target. No I/O.

pub mod accounts;
pub mod btf;
pub mod fanotify;
pub mod hierarchy;
pub mod install;
pub mod mountinfo;
pub mod stat;
pub mod unit_name;
