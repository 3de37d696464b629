//! The guest side: from the kernel's start of `/init` to the last line and power off.
//!
//! In: kernel parameters (`hf.guest`, `hf.kernel`), and on the second serial port the name of the scenario. Out:
//! messages on the same port. The program changes nothing between the message `Hello` and the name. So the host can save the guest
//! then, and start each scenario from the saved state.
//!
//! The helpers for scenarios are beside this file. `agent` runs the daemon as a child, `service` under systemd, and `kube` as a pod;
//! `pod` makes the containers of one without a kubelet, `reporter` runs one of them, and `image` has the pod's image. `api` reads the cluster's objects, and `programs` lists the kernel programs.
//! `forensic` reads its log, `status` and `page` what it publishes, `prometheus` what a Prometheus on the
//! host has of it. `disks` mounts file systems, `device_mapper` makes verity devices, `bus` sends messages on D-Bus, `hang` prints what the threads of a slow guest wait for, `wait` waits for
//! conditions. This code runs only in a guest: it mounts, loads modules and powers off.

pub mod agent;
pub mod api;
pub mod boot;
pub mod bus;
pub mod capabilities;
pub mod command;
mod context;
pub mod device_mapper;
pub mod disks;
pub mod files;
pub(crate) mod forensic;
pub mod fuse;
pub(crate) mod hang;
pub mod image;
pub mod kube;
pub mod ostree;
pub mod page;
pub mod pod;
pub mod programs;
pub mod prometheus;
pub mod reporter;
pub mod service;
pub mod status;
pub mod wait;

pub use command::{parameter, run, shell, shell_time};
pub use context::Context;
