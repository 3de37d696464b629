//! Kernel arguments that wait for the next boot, because a policy does not reboot for their change.
//!
//! In: the arguments that waited before, the changes of an apply without a reboot, the declared arguments, and those of the
//! running kernel. Out: the arguments that wait now, and a text for each. They wait in one boot only: in the next boot every
//! declared argument is expected.

#[cfg(test)]
mod tests;

use crate::{
    changes::{ChangeKind, ChangeOperation},
    expectation::{Expectation, Expected},
    os::arguments::{are_set, common, in_order, is_among, split},
    plan::PlannedChange,
};
use serde::{Deserialize, Serialize};

/// The arguments that wait for the next boot, as the state directory keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiting {
    /// The boot in which they wait.
    pub boot_id: String,
    /// The applied MachineConfigs.
    pub config: String,
    /// The arguments.
    pub arguments: Vec<WaitingArgument>,
}

impl Waiting {
    /// The arguments that wait in a boot: none in another boot than the one of this record.
    pub fn in_boot(&self, boot_id: &str) -> &[WaitingArgument] {
        if self.boot_id == boot_id { &self.arguments } else { &[] }
    }
}

/// One argument that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WaitingArgument {
    /// The argument. For a change of order: all declared arguments that the kernel has.
    pub argument: String,
    /// Whether it is added, removed, or moved.
    pub operation: ChangeOperation,
    /// The policy's entry that does not reboot for it.
    pub policy: String,
}

impl WaitingArgument {
    /// A text for people: why the running kernel differs from the declaration.
    pub fn text(&self) -> String {
        let Self { argument, operation, policy } = self;
        let what = match operation {
            ChangeOperation::Add => "set for the next boot, the running kernel does not have it",
            ChangeOperation::Remove => "removed at the next boot, the running kernel still has it",
            ChangeOperation::Change => "in this order from the next boot on",
        };
        format!("kernel argument {argument}: {what}; policy {policy}")
    }

    /// Whether a config with these arguments wants it.
    fn is_wanted(&self, declared: &[String]) -> bool {
        match self.operation {
            ChangeOperation::Add => is_among(&self.argument, declared),
            ChangeOperation::Remove => !is_among(&self.argument, declared),
            // One word has no order.
            ChangeOperation::Change => {
                let words = split(&self.argument);
                in_order(&words, declared) && common(&words, declared).len() > 1
            }
        }
    }

    /// Whether a kernel with these arguments does not have it yet.
    fn is_due(&self, found: &[String]) -> bool {
        match self.operation {
            ChangeOperation::Add => !is_among(&self.argument, found),
            ChangeOperation::Remove => is_among(&self.argument, found),
            ChangeOperation::Change => !are_set(&split(&self.argument), found),
        }
    }
}

/// One argument that waits, as outputs have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WaitingOutput {
    /// The argument, its operation, and the policy.
    #[serde(flatten)]
    pub argument: WaitingArgument,
    /// The same for people.
    pub text: String,
}

impl From<WaitingArgument> for WaitingOutput {
    fn from(argument: WaitingArgument) -> Self {
        Self { text: argument.text(), argument }
    }
}

/// The waiting arguments that a config with these arguments wants.
pub fn wanted(waiting: &[WaitingArgument], declared: &[String]) -> Vec<WaitingArgument> {
    waiting.iter().filter(|argument| argument.is_wanted(declared)).cloned().collect()
}

/// The arguments that wait after an apply.
///
/// `before`: those that waited in this boot before the apply. `changes`: the plan's changes, if the apply changes the OS without
/// a reboot. `declared`: the new config's arguments. `found`: those of the running kernel.
pub fn after(
    before: &[WaitingArgument],
    changes: &[PlannedChange],
    declared: &[String],
    found: &[String],
) -> Vec<WaitingArgument> {
    let changes: Vec<&PlannedChange> =
        changes.iter().filter(|change| change.kind == ChangeKind::KernelArgument).collect();
    let (of_order, of_words): (Vec<&WaitingArgument>, Vec<_>) =
        before.iter().partition(|known| known.operation == ChangeOperation::Change);
    let mut waiting: Vec<WaitingArgument> = of_words.into_iter().cloned().collect();
    for change in changes.iter().filter(|change| change.operation != ChangeOperation::Change) {
        let (operation, policy) = (change.operation, &change.policy);
        // A declared line may have several arguments.
        for argument in split(&change.name) {
            if !waiting.iter().any(|known| known.argument == argument && known.operation == operation) {
                waiting.push(WaitingArgument { argument, operation, policy: policy.clone() });
            }
        }
    }
    // All declared arguments are staged together, in their order. A change of order waits if the kernel has another one, for
    // example because an argument was removed and added again. Its policy is that of the change of order, now or before; else
    // that of the first staged change.
    let ordered = changes
        .iter()
        .find(|change| change.operation == ChangeOperation::Change)
        .map(|change| &change.policy);
    let known = || of_order.iter().find(|known| known.is_wanted(declared)).map(|known| &known.policy);
    let staged = || changes.first().map(|change| &change.policy);
    if let Some(policy) = ordered.or_else(known).or_else(staged) {
        let there = declared.iter().filter(|word| is_among(word, found)).map(String::as_str);
        let argument = there.collect::<Vec<_>>().join(" ");
        waiting.push(WaitingArgument {
            argument,
            operation: ChangeOperation::Change,
            policy: policy.clone(),
        });
    }
    waiting.retain(|argument| argument.is_wanted(declared) && argument.is_due(found));
    waiting
}

/// Sets the waiting arguments in the expectation of kernel arguments.
pub fn note(expectations: &mut [Expectation], waiting: &[WaitingArgument]) {
    for expectation in expectations {
        if let Expected::KernelArguments(declared) = &mut expectation.expected {
            let coming = waiting.iter().filter(|argument| argument.operation == ChangeOperation::Add);
            declared.waiting = coming.map(|waits| waits.argument.clone()).collect();
        }
    }
}
