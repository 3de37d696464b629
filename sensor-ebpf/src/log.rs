//! Lines for the daemon's log, in debug builds of the object.
//!
//! Without the feature `log` every function here is empty, and the object has neither the map nor the code of aya-log.
//!
//! Each line has a function that the verifier checks by itself, with a stack frame of its own. The kernel limits the stack of all
//! frames together. So a line fits only at a place that also calls something deeper, such as `deny::refuse`.

/// Declares a function for each line.
macro_rules! lines {
    ($($(#[$doc:meta])* $level:ident $name:ident($($value:ident),*) $text:tt;)*) => {$(
        $(#[$doc])*
        // SAFETY: no other symbol of the object has this name.
        #[cfg(feature = "log")]
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $name($($value: u64),*) -> u64 {
            aya_log_ebpf::$level!((), $text, $($value),*);
            0
        }

        $(#[$doc])*
        #[cfg(not(feature = "log"))]
        #[inline(always)]
        pub(crate) fn $name($($value: u64),*) {
            $(let _ = $value;)*
        }
    )*};
}

lines! {
    /// The daemon wrote its canary.
    info log_canary(id) "canary written: number {}";
    /// The daemon opened an object with the flags of an observation.
    debug log_observation(ino, dev, generation) "observation: inode {}, device {}, generation {}";
    /// A rename put an inode in the place of a managed one.
    info log_enrolment(id, ino) "enrolled by a rename: number {}, inode {}";
    /// A deny rule refused an operation.
    info log_refusal(id, rule, operation) "refused: number {}, rule {}, operation {}";
    /// The ring had no room for a record.
    warn log_loss(id, operation) "record lost: number {}, operation {}";
}
