//! By whose rules a config is read, and what for.

/// Whose rules a config has to keep beyond Ignition's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A plain Ignition config.
    Plain,
    /// The config of a MachineConfig: no special mode bits, an unset source means an empty file.
    MachineConfig,
}

/// What a config is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To keep a node as it says: what cannot be verified is refused.
    Verify,
    /// To compare it with another: what no node can be brought to is told by the comparison, with
    /// everything else that cannot be reconciled.
    Compare,
}
