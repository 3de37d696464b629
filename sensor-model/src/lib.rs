//! The pure domain logic of Holdfast: no I/O, no async, no clock.
//!
//! Two pipelines, by the modules that data passes:
//!
//! ```text
//! detect: machine_config -> merge -> expectations; then compare (with an observation) -> protocol -> record -> fit -> chain
//! apply:  merge (the old and the new config) -> changes -> node_disruption -> plan -> journal
//! ```
//!
//! A module takes only from the modules above it in this list:
//!
//! | module | owns |
//! |---|---|
//! | [`name_patterns`] | patterns of single names |
//! | [`link_exceptions`] | symbolic links that may be in a closed directory |
//! | [`text`] | strings and permission bits in the form of Go's `fmt`, which the Machine Config Operator's texts have |
//! | [`escape`] | paths of any bytes as text, and back |
//! | [`path`] | the form that declared paths and names must have |
//! | `unknown` | fields that a format does not have, and the nearest known one |
//! | `fields` | typed access to the fields of untyped objects, with an error that names the field |
//! | [`data_url`] | a file's content as Ignition carries it: data URL, compression, hash |
//! | [`authorized_keys`] | the keys in a file that sshd reads |
//! | [`xattr`] | extended attributes in readable form |
//! | [`selinux`] | the label that the policy gives a path |
//! | [`cgroup`] | unit, slice, container and pod by a control group's path |
//! | [`host`] | parsers for other texts of a host: mount table, process status, accounts, unit files, BTF, fanotify events |
//! | [`os`] | deployments and kernel arguments: how tools print them and how two of them compare |
//! | [`expectation`] | what one managed thing should be, and which MachineConfig declares it |
//! | [`expectation_watch`] | the paths to watch for an expectation |
//! | [`ignition`] | Ignition configs: parsed, validated, converted to the newest spec |
//! | [`machine_config`] | manifests: MachineConfigs, Ignition configs and other objects of a file |
//! | [`merge`] | many MachineConfigs become one rendered config |
//! | [`pool`] | the MachineConfigs that a pool selects, and its rendered MachineConfig |
//! | [`expectations`] | the expectations of a rendered config, one for each thing |
//! | [`config_digest`] | the digest of what a rendered config declares, by which two programs compare it |
//! | [`observation`] | what is on the host, as plain data |
//! | [`difference`] | one way in which an observation departs from its expectation |
//! | [`compare`] | an expectation and an observation become differences |
//! | [`image`] | OS images: manifests, layers, what they put at each path, and the index of that |
//! | [`ostree`] | the objects of an ostree repository, the checksum of a file, and the layers of the image that a commit was made from |
//! | [`dpkg`] | the packages of dpkg's database, and what each has at its paths |
//! | [`rpm`] | the same by rpm's database |
//! | [`adopt`] | the MachineConfig that declares the present state |
//! | [`record`] | one entry of the forensic log: what changed, when, and who changed it |
//! | [`audit`] | users of the API server whose requests match a change by a process in a pod |
//! | [`fit`] | a record cut to the size limit of an entry |
//! | [`chain`] | the hash chain of the log's entries |
//! | [`drift_policy`] | what to do about the drift of a path |
//! | [`closed`] | the directories that a drift policy closes, and what may be in them |
//! | [`absent`] | the paths where a drift policy expects nothing |
//! | [`reconcile`] | why a running node cannot be brought from one config to another |
//! | [`changes`] | what differs between two rendered configs |
//! | [`registries`] | whether a change of `registries.conf` needs a drain |
//! | [`action`] | the actions that policies ask for and applies run, with their names |
//! | [`node_disruption`] | which actions a change needs, by policy |
//! | [`plan`] | changes and policy become ordered steps |
//! | [`waiting`] | kernel arguments that take effect at the next boot |
//! | [`journal`] | the journal of an apply and the state machine that works through it |
//! | [`node_state`] | the state of a node during an apply |
//! | [`status`] | the contract of the status: what the daemon keeps in `status.json` and `holdfast status` prints |
//! | [`socket`] | the contract of the reporter's socket: paths, limits and answers |
//! | `fuzzing` | the bodies of the fuzz targets |
//!
//! [`protocol`] is a crate of its own, because tests run it optimised: the detection protocol, by which changes and verifications
//! become verdicts and gaps.
#![forbid(unsafe_code)]

pub mod absent;
pub mod action;
pub mod adopt;
pub mod audit;
pub mod authorized_keys;
pub mod cgroup;
pub mod chain;
pub mod changes;
pub mod closed;
pub mod compare;
pub mod config_digest;
pub mod connections;
pub mod data_url;
pub mod difference;
pub mod dpkg;
pub mod drift_policy;
pub mod escape;
pub mod expectation;
pub mod expectation_watch;
pub mod expectations;
mod fields;
pub mod fit;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host;
pub mod ignition;
pub mod image;
pub mod journal;
pub mod link_exceptions;
pub mod machine_config;
pub mod merge;
pub mod name_patterns;
pub mod node_disruption;
pub mod node_state;
pub mod observation;
pub mod os;
pub mod ostree;
pub mod path;
pub mod plan;
pub mod pool;
pub mod reconcile;
pub mod record;
pub mod registries;
pub mod rpm;
pub mod selinux;
pub mod socket;
pub mod status;
pub mod strength;
pub mod text;
mod unknown;
pub mod waiting;
pub mod xattr;

pub use sensor_protocol as protocol;
pub use sensor_protocol::verdict;
