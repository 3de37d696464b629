//! The operator's consent to an apply.
//!
//! In: the plan, and what the options consent to already. Out: the consent that is missing. The question is for the caller.

use sensor_model::plan::Plan;
use std::{fmt, io};

/// The variable that consents to an apply, as `--yes` does.
pub const YES: &str = "HOLDFAST_YES";
/// The variable that allows a reboot, as `--reboot` does.
pub const REBOOT: &str = "HOLDFAST_REBOOT";

/// What the options and the environment consent to.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivenConsent {
    /// The apply.
    pub yes: bool,
    /// The reboot of a plan that has one.
    pub reboot: bool,
}

/// The consent that is missing. Its text names what to add to the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingConsent {
    yes: bool,
    reboot: bool,
}

impl MissingConsent {
    /// What the given consent lacks for a plan; `None` if it lacks nothing. `reboots`: the apply runs the plan's reboot.
    pub(super) fn of(given: GivenConsent, reboots: bool) -> Option<Self> {
        let missing = Self { yes: !given.yes, reboot: reboots && !given.reboot };
        (missing.yes || missing.reboot).then_some(missing)
    }
}

impl fmt::Display for MissingConsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yes = self.yes.then(|| format!("`--yes` (or {YES}=1)"));
        let reboot =
            self.reboot.then(|| format!("`--reboot` (or {REBOOT}=1), since the plan reboots the host"));
        let add: Vec<String> = yes.into_iter().chain(reboot).collect();
        f.write_str(&add.join(" and "))
    }
}

/// An apply for which consent is missing.
#[derive(Debug, Clone, Copy)]
pub struct ProposedApply<'a> {
    /// Its plan.
    pub plan: &'a Plan,
    /// Whether every declared path is written.
    pub forced: bool,
    /// Whether it reboots the host.
    pub reboots: bool,
    /// What is missing.
    pub missing: MissingConsent,
}

/// Why the operator has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ConsentError {
    /// There is no operator, and the options do not consent.
    #[error("nothing was started: there is no terminal to ask on; add {0}")]
    NoTerminal(MissingConsent),
    /// The terminal cannot be read or written.
    #[error(transparent)]
    Terminal(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_needs_a_consent_of_its_own() {
        for (yes, reboot, reboots, wanted) in [
            (true, false, false, None),
            (true, true, true, None),
            (false, false, false, Some("`--yes` (or HOLDFAST_YES=1)")),
            (false, true, true, Some("`--yes` (or HOLDFAST_YES=1)")),
            (true, false, true, Some("`--reboot` (or HOLDFAST_REBOOT=1), since the plan reboots the host")),
            (
                false,
                false,
                true,
                Some(
                    "`--yes` (or HOLDFAST_YES=1) and `--reboot` (or HOLDFAST_REBOOT=1), since the plan reboots the host",
                ),
            ),
        ] {
            let missing = MissingConsent::of(GivenConsent { yes, reboot }, reboots);
            assert_eq!(missing.map(|missing| missing.to_string()).as_deref(), wanted);
        }
    }
}
