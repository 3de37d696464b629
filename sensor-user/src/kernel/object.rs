//! The object with the kernel programs, which the build embeds.

/// The object.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("HOLDFAST_EBPF_OBJECT"));

/// SHA-256 of [`OBJECT`] in hex.
pub const OBJECT_SHA256: &str = env!("HOLDFAST_EBPF_SHA256");
