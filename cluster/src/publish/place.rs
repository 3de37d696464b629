//! Where the reporter runs.

/// The node, and the reporter's own names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReporterPlace {
    /// The Node's name.
    pub node: String,
    /// The namespace of the Lease.
    pub namespace: String,
    /// The reporter's own name.
    pub holder: String,
}
