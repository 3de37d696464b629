//! The cluster's side of Holdfast: what a node's sensor found becomes objects of the API.
//!
//! The reporter has no rights on the host but the connection to the sensor's socket. The sensor has no network.
//!
//! ```text
//! the sensor's socket -> socket -> reports (with the names of pods and containers) -> publish -> the API server
//! ```
//!
//! A module takes only from the modules above it in this list:
//!
//! | module | owns |
//! |---|---|
//! | [`text`] | texts that fit into objects of the cluster |
//! | [`backoff`] | pauses between attempts that fail |
//! | [`listen`] | listening sockets of the pages |
//! | `watching` | watches that pause between attempts that fail |
//! | [`socket`] | the client of the sensor's socket |
//! | [`api`] | the objects that Holdfast defines in the API |
//! | [`reports`] | what the sensor found, as the cluster sees it |
//! | [`client`] | connections to the API server |
//! | [`reads`] | reads of the own Node and its pods, in the node's name |
//! | [`pods`] | names of pods by their uids, of containers by their ids |
//! | [`metrics`] | the reporter's own metrics |
//! | [`publish`] | the writes to the API server |
//! | `node_watch` | the watch on the own Node |
//! | [`policies`] | the drift policies of the cluster for the node |
//! | [`os_image`] | what the cluster says about the node's OS image |
//! | [`node_config`] | whether the config that the sensor expects is the one of the cluster |
//! | [`manage`] | the work of the Machine Config Operator's daemon, in mode `manage` |
//! | [`probes`] | the health pages for the kubelet |
//! | [`secure`] | the pages over TLS for callers with a token |
//! | [`node`] | the command `node`, which joins them |
//! | [`controller`] | the command `controller`: which nodes have taken which policy |
//! | [`remove`] | the command `remove`, which takes away what reporters wrote |
//! | [`image`] | the command `image pull`: an image of a registry becomes a directory |
//! | [`plugin`] | the command `kubectl holdfast` |
//! | [`cli`] | the command line |
#![forbid(unsafe_code)]

pub mod api;
pub mod backoff;
pub mod cli;
pub mod client;
mod connections;
pub mod controller;
pub mod image;
pub mod listen;
pub mod manage;
pub mod metrics;
pub mod node;
pub mod node_config;
mod node_watch;
pub mod os_image;
#[cfg(test)]
mod played_log;
#[cfg(test)]
mod played_server;
pub mod plugin;
pub mod pods;
pub mod policies;
pub mod probes;
pub mod publish;
pub mod reads;
pub mod remove;
pub mod reports;
pub mod secure;
pub mod socket;
pub mod text;
mod watch_age;
mod watching;
