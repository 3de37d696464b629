//! Holdfast's daemon and command line, as a library of rooms.
//!
//! Each room takes only from those above it in this table.
//!
//! A change: [`kernel`] gives a ring record to the loop of [`agent`]. The loop decodes it with [`event`], finds its actor with
//! [`attribution`], and observes the thing with [`observation`]. It compares, reaches a verdict, and gives that to [`report`]
//! through a trait.
//!
//! A config: [`cli`] passes its files to [`apply`], which reads them with [`desired`] and makes a plan. It notes every path
//! before and after, and later each act, in the journal of [`store`], and writes the paths with [`disk`].
//!
//! | room | what it does |
//! |---|---|
//! | [`bounded`] | reads files up to a limit |
//! | [`clock`] | gives the time |
//! | [`host_namespaces`] | enters the host's namespaces from a pod |
//! | [`no_network`] | refuses network sockets to the process |
//! | [`systemd`] | asks systemd for the state of a unit |
//! | [`sys`] | has the system calls that change a disk |
//! | [`desired`] | reads what the node should be: configs, drift policies, generations |
//! | [`kernel`] | loads the kernel programs, and reads their ring and maps |
//! | [`fanotify`] | receives changes if no kernel program can be loaded |
//! | [`event`] | decodes and checks a ring record |
//! | [`attribution`] | finds the actor of a change: process, login, unit, pod |
//! | [`observation`] | observes the things of a host |
//! | [`packages`] | finds the directories that a policy closes, and what packages have there and elsewhere |
//! | [`labels`] | finds the SELinux label that a path should have |
//! | [`agent`] | runs the detection protocol in one loop |
//! | [`diagnosis`] | tests which backend works on a host, and what it cannot see |
//! | [`report`] | writes the loop's records to the forensic log, and keeps one picture of the node for the metrics and the status |
//! | [`disk`] | writes managed paths; nothing else does |
//! | [`store`] | keeps generations and the journal of an apply |
//! | [`quarantine`] | keeps objects that a drift policy moved out of closed directories |
//! | [`image`] | indexes the image of the OS, and compares a host with it |
//! | [`repair`] | restores the declared state of a thing |
//! | [`inspection`] | compares a host with its config without the daemon, and explains one path |
//! | [`apply`] | brings the host from one config to another |
//! | [`purge`] | deletes the state directory and the forensic log of a daemon that does not run |
//! | [`cli`] | parses arguments, calls one room, prints the answer |

// The print macros panic if the reader closed the pipe, and an apply would stop halfway. `cli::output::say` does not panic.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod bounded;
pub mod clock;

pub mod host_namespaces;

pub mod no_network;

pub mod systemd;

pub mod sys;

pub mod desired;

pub mod kernel;

pub mod fanotify;

pub mod event;

pub mod attribution;

pub mod observation;

pub mod packages;

pub mod labels;

pub mod agent;

pub mod diagnosis;

pub mod report;

pub mod disk;

pub mod store;

pub mod image;
pub mod quarantine;

pub mod repair;

pub mod inspection;

pub mod apply;

pub mod purge;

pub mod cli;
