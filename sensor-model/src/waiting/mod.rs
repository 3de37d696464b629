//! Kernel arguments that wait for the next boot, because a policy keeps their change from a reboot.
//!
//! In: what waited before, the changes of an apply that does not reboot, what the new config declares, and what the kernel
//! was booted with. Out: what waits now, and how that is said. It holds for one boot: in the next one nothing waits, and
//! what is declared has to be there.

#[cfg(test)]
mod tests;

use crate::{
    changes::{Kind, Operation},
    expectation::{Expectation, Expected},
    os::arguments::{are_set, common, in_order, is_among, split},
    plan::PlannedChange,
};
use serde::{Deserialize, Serialize};

/// What waits for the next boot, as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiting {
    /// The boot that runs without it.
    pub boot_id: String,
    /// The MachineConfigs that were applied.
    pub config: String,
    /// One argument each.
    pub arguments: Vec<WaitingArgument>,
}

impl Waiting {
    /// What waits in a boot: nothing, where it is not the one in which this was written.
    pub fn in_boot(&self, boot_id: &str) -> &[WaitingArgument] {
        if self.boot_id == boot_id { &self.arguments } else { &[] }
    }
}

/// One argument that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WaitingArgument {
    /// The argument; for another order all of those that the kernel has, and that are declared.
    pub argument: String,
    /// Whether it comes, goes, or has another place.
    pub operation: Operation,
    /// The policy's entry that keeps it from the reboot.
    pub policy: String,
}

impl WaitingArgument {
    /// For people, why what runs is not what is declared.
    pub fn text(&self) -> String {
        let Self { argument, operation, policy } = self;
        let what = match operation {
            Operation::Add => "set for the next boot, this one runs without it",
            Operation::Remove => "gone with the next boot, this one still runs with it",
            Operation::Change => "in this order from the next boot on",
        };
        format!("kernel argument {argument}: {what}; policy {policy}")
    }

    /// Whether a config with these arguments wants it.
    fn is_wanted(&self, declared: &[String]) -> bool {
        match self.operation {
            Operation::Add => is_among(&self.argument, declared),
            Operation::Remove => !is_among(&self.argument, declared),
            // Of one word there is no order.
            Operation::Change => {
                let words = split(&self.argument);
                in_order(&words, declared) && common(&words, declared).len() > 1
            }
        }
    }

    /// Whether a kernel with these arguments has not got it yet.
    fn is_due(&self, found: &[String]) -> bool {
        match self.operation {
            Operation::Add => !is_among(&self.argument, found),
            Operation::Remove => is_among(&self.argument, found),
            Operation::Change => !are_set(&split(&self.argument), found),
        }
    }
}

/// One argument that waits, as outputs have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Waits {
    /// The argument, what becomes of it, and the policy.
    #[serde(flatten)]
    pub argument: WaitingArgument,
    /// The same for people.
    pub text: String,
}

impl From<WaitingArgument> for Waits {
    fn from(argument: WaitingArgument) -> Self {
        Self { text: argument.text(), argument }
    }
}

/// Of what waits, that which a config with these arguments wants.
pub fn wanted(waiting: &[WaitingArgument], declared: &[String]) -> Vec<WaitingArgument> {
    waiting.iter().filter(|argument| argument.is_wanted(declared)).cloned().collect()
}

/// What waits after an apply.
///
/// `before`: what waited in this boot until then. `changes`: those of the apply's plan, if it neither reboots nor leaves the
/// OS alone. `declared`: the new config's arguments. `found`: what the kernel was booted with.
pub fn after(
    before: &[WaitingArgument],
    changes: &[PlannedChange],
    declared: &[String],
    found: &[String],
) -> Vec<WaitingArgument> {
    let changes: Vec<&PlannedChange> =
        changes.iter().filter(|change| change.kind == Kind::KernelArgument).collect();
    let (of_order, of_words): (Vec<&WaitingArgument>, Vec<_>) =
        before.iter().partition(|known| known.operation == Operation::Change);
    let mut waiting: Vec<WaitingArgument> = of_words.into_iter().cloned().collect();
    for change in changes.iter().filter(|change| change.operation != Operation::Change) {
        let (operation, policy) = (change.operation, &change.policy);
        // A declared line may hold several arguments.
        for argument in split(&change.name) {
            if !waiting.iter().any(|known| known.argument == argument && known.operation == operation) {
                waiting.push(WaitingArgument { argument, operation, policy: policy.clone() });
            }
        }
    }
    // All declared arguments are staged together, and in their order. That is due where the kernel has them in another one,
    // also because of something that went and came again. The word about it is that of the change of order, if there is
    // one or was one that still holds, else that of what is staged.
    let said =
        changes.iter().find(|change| change.operation == Operation::Change).map(|change| &change.policy);
    let known = || of_order.iter().find(|known| known.is_wanted(declared)).map(|known| &known.policy);
    let staged = || changes.first().map(|change| &change.policy);
    if let Some(policy) = said.or_else(known).or_else(staged) {
        let there = declared.iter().filter(|word| is_among(word, found)).map(String::as_str);
        let argument = there.collect::<Vec<_>>().join(" ");
        waiting.push(WaitingArgument { argument, operation: Operation::Change, policy: policy.clone() });
    }
    waiting.retain(|argument| argument.is_wanted(declared) && argument.is_due(found));
    waiting
}

/// Tells the expectation of kernel arguments which of them wait.
pub fn note(expectations: &mut [Expectation], waiting: &[WaitingArgument]) {
    for expectation in expectations {
        if let Expected::KernelArguments(declared) = &mut expectation.expected {
            let coming = waiting.iter().filter(|argument| argument.operation == Operation::Add);
            declared.waiting = coming.map(|waits| waits.argument.clone()).collect();
        }
    }
}
