//! The ABI between Holdfast's kernel programs and its daemon.
//!
//! Everything here is plain data of fixed layout: what crosses the ring buffer ([`record`]), what
//! stands in the maps ([`map`]), the codes both sides use ([`op`]) and the sizes they agree on
//! ([`limits`]). It has no behaviour beyond naming codes, no allocation and no std.
#![no_std]

pub mod bitmap;
pub mod decode;
pub mod digits;
pub mod limits;
pub mod map;
pub mod op;
pub mod record;

/// Version of this ABI. A daemon adopts pinned maps only when theirs is the same.
pub const ABI_VERSION: u32 = 15;
