//! The rules by which a config is read, and the purpose of the reading.
//!
//! In: nothing. Out: the dialects and the purposes.

/// The rules that a config has to keep besides Ignition's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A plain Ignition config.
    Plain,
    /// The config of a MachineConfig: no special mode bits, an unset source means an empty file.
    MachineConfig,
}

/// The purpose for which a config is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To verify a node: a field that cannot be verified is refused.
    Verify,
    /// To compare it with another config: the comparison reports fields that cannot be applied, together with everything else
    /// that cannot be reconciled.
    Compare,
}
