//! The ABI between Holdfast's kernel programs and its daemon.
//!
//! Plain data of fixed layout: ring records ([`record`]), keys and values of maps ([`map`]), codes of operations and roles
//! ([`op`]), and limits ([`limits`]). It has no allocation and no std.
#![no_std]

pub mod bitmap;
pub mod decode;
pub mod digits;
pub mod limits;
pub mod map;
pub mod op;
pub mod record;

/// Version of this ABI. A daemon adopts pinned maps only when theirs is the same.
pub const ABI_VERSION: u32 = 17;
