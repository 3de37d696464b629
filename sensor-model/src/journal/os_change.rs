//! What changes of the operating system itself, for the OS backend.
//!
//! In: what two configs declare, and what waited for the next boot. Out: what goes and what comes, for the way there and
//! for the way back. Nothing is run here.

use crate::{
    changes::Operation,
    os::arguments::{common, is_among, partition},
    waiting::{Waiting, WaitingArgument},
};
use serde::{Deserialize, Serialize};

/// What changes of the operating system itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OsChange {
    /// Image before.
    pub old_image: Option<String>,
    /// Image after.
    pub new_image: Option<String>,
    /// Kernel arguments that go.
    pub remove_arguments: Vec<String>,
    /// Kernel arguments that come.
    pub add_arguments: Vec<String>,
    /// Kernel type before (`default`, `realtime`, `64k-pages`).
    pub old_kernel: String,
    /// Kernel type after.
    pub new_kernel: String,
    /// Extensions that go.
    pub remove_extensions: Vec<String>,
    /// Extensions that come.
    pub add_extensions: Vec<String>,
    /// The commit that was booted when it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<String>,
    /// The kernel arguments that were booted when it began; empty where they are not known. Where some waited, those that
    /// the next boot would have had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub booted_arguments: Vec<String>,
    /// What waited for the next boot when it began: staging another deployment drops what was staged for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waiting>,
}

impl OsChange {
    /// The change that undoes this one. Arguments that the host had itself stay, and those come back that it had, in the
    /// order that they had.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let (came, went) = if self.booted_arguments.is_empty() {
            (self.add_arguments.clone(), self.remove_arguments.clone())
        } else {
            let had = |word: &String| is_among(word, &self.booted_arguments);
            let came = self.add_arguments.iter().filter(|word| !had(word)).cloned().collect();
            (came, self.had())
        };
        Self {
            old_image: self.new_image.clone(),
            new_image: self.old_image.clone(),
            remove_arguments: came,
            add_arguments: went,
            old_kernel: self.new_kernel.clone(),
            new_kernel: self.old_kernel.clone(),
            remove_extensions: self.add_extensions.clone(),
            add_extensions: self.remove_extensions.clone(),
            booted: self.booted.clone(),
            booted_arguments: self.booted_arguments.clone(),
            waited: self.waited.clone(),
        }
    }

    /// Of the arguments that were booted those that either side declares: as often, and written down, as it does.
    fn had(&self) -> Vec<String> {
        let mut declared = self.remove_arguments.clone();
        let (_, others) = partition(&self.add_arguments, &self.remove_arguments, String::clone);
        declared.extend(others.into_iter().cloned());
        let as_declared = |word: &String| {
            declared.iter().find(|declared| is_among(declared, std::slice::from_ref(word))).cloned()
        };
        common(&self.booted_arguments, &declared).into_iter().filter_map(as_declared).collect()
    }

    /// The same on a host where arguments wait for the next boot. `old`, `new`: what the two configs declare. What is
    /// staged next is made from what is booted, so it gets all arguments, and not only those that differ.
    #[must_use]
    pub fn beside(self, waited: Waiting, old: Vec<String>, new: Vec<String>) -> Self {
        if waited.arguments.is_empty() {
            return self;
        }
        let of = |operation| waited.arguments.iter().filter(move |waits| waits.operation == operation);
        let mut had = self.booted_arguments.clone();
        had.retain(|word| !of(Operation::Remove).any(|waits| waits.argument == *word));
        if !had.is_empty() {
            had.extend(of(Operation::Add).map(|waits| waits.argument.clone()));
            // They were staged behind what the host has itself, in their order.
            let declared = common(&old, &had).into_iter().cloned().collect::<Vec<_>>();
            had = partition(&had, &old, String::clone).1.into_iter().cloned().chain(declared).collect();
        }
        Self {
            remove_arguments: old,
            add_arguments: new,
            booted_arguments: had,
            waited: Some(waited),
            ..self
        }
    }

    /// Arguments that the next boot shall not have, also those that went before and that this boot still runs with.
    pub fn gone(&self) -> Vec<String> {
        let waited = self.waited.iter().flat_map(|waited| &waited.arguments);
        let going = waited.filter(|argument| argument.operation == Operation::Remove);
        let others = going.map(|waits| &waits.argument).filter(|word| !self.add_arguments.contains(word));
        self.remove_arguments.iter().chain(others).cloned().collect()
    }

    /// Whether anything is done about kernel arguments.
    pub fn has_arguments(&self) -> bool {
        !self.add_arguments.is_empty() || !self.gone().is_empty()
    }

    /// Whether nothing but kernel arguments changes.
    pub fn is_of_arguments(&self) -> bool {
        self.old_image == self.new_image
            && self.old_kernel == self.new_kernel
            && self.add_extensions.is_empty()
            && self.remove_extensions.is_empty()
    }

    /// What waited when it began, if that was in this boot.
    pub fn waits(&self, boot_id: &str) -> &[WaitingArgument] {
        self.waited.as_ref().map_or(&[], |waited| waited.in_boot(boot_id))
    }

    /// On the way back: what stages again what waited for the next boot, over the OS that is booted.
    #[must_use]
    pub fn waiting_again(&self) -> Self {
        let back = self.reversed();
        Self {
            old_image: back.new_image.clone(),
            old_kernel: back.new_kernel.clone(),
            remove_extensions: Vec::new(),
            add_extensions: Vec::new(),
            ..back
        }
    }
}
