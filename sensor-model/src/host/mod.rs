//! Parsers for texts of the host: mount table, process status, accounts, unit files, limits of control groups, BTF, fanotify events.
//!
//! In: bytes or text. Out: plain values. Users control parts of these inputs: they mount file systems, name processes and edit
//! files. So any input is handled, invalid lines are ignored, and each parser is a fuzz target. No I/O.

pub mod accounts;
pub mod btf;
pub mod fanotify;
pub mod hierarchy;
pub mod install;
pub mod mountinfo;
pub mod processor_quota;
pub mod stat;
pub mod unit_name;
