//! The change of the operating system, for the OS tool.
//!
//! In: the declarations of two configs, and the kernel arguments that wait for the next boot. Out: the parts to remove and to
//! add, for the apply and for its rollback.

use crate::{
    changes::ChangeOperation,
    os::arguments::{common, is_among, partition},
    waiting::{Waiting, WaitingArgument},
};
use serde::{Deserialize, Serialize};

/// The change of the operating system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OsChange {
    /// Image before.
    pub old_image: Option<String>,
    /// Image after.
    pub new_image: Option<String>,
    /// Kernel arguments to remove.
    pub remove_arguments: Vec<String>,
    /// Kernel arguments to add.
    pub add_arguments: Vec<String>,
    /// Kernel type before (`default`, `realtime`, `64k-pages`).
    pub old_kernel: String,
    /// Kernel type after.
    pub new_kernel: String,
    /// Extensions to remove.
    pub remove_extensions: Vec<String>,
    /// Extensions to add.
    pub add_extensions: Vec<String>,
    /// The booted commit at the begin of the apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<String>,
    /// The booted kernel arguments at the begin of the apply; empty if unknown. If some waited, those that the next boot would
    /// have had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub booted_arguments: Vec<String>,
    /// The arguments that waited for the next boot at the begin: staging another deployment drops the staged ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<Waiting>,
}

impl OsChange {
    /// The change that undoes this one. Arguments that the host had before stay, and removed ones are added again in their old
    /// order.
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

    /// The booted arguments that either config declares, in the form and number of the declaration.
    fn had(&self) -> Vec<String> {
        let mut declared = self.remove_arguments.clone();
        let (_, others) = partition(&self.add_arguments, &self.remove_arguments, String::clone);
        declared.extend(others.into_iter().cloned());
        let as_declared = |word: &String| {
            declared.iter().find(|declared| is_among(declared, std::slice::from_ref(word))).cloned()
        };
        common(&self.booted_arguments, &declared).into_iter().filter_map(as_declared).collect()
    }

    /// The change on a host where arguments wait for the next boot. `old` and `new` are the declared arguments of the two
    /// configs. The next deployment is staged from the booted one, so the change has all arguments and not only those that
    /// differ.
    #[must_use]
    pub fn beside(self, waited: Waiting, old: Vec<String>, new: Vec<String>) -> Self {
        if waited.arguments.is_empty() {
            return self;
        }
        let of = |operation| waited.arguments.iter().filter(move |waits| waits.operation == operation);
        let mut had = self.booted_arguments.clone();
        had.retain(|word| !of(ChangeOperation::Remove).any(|waits| waits.argument == *word));
        if !had.is_empty() {
            had.extend(of(ChangeOperation::Add).map(|waits| waits.argument.clone()));
            // The declared arguments were staged after the host's own ones, in their order.
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

    /// Arguments that the next boot must not have, including those removed before that the running kernel still has.
    pub fn gone(&self) -> Vec<String> {
        let waited = self.waited.iter().flat_map(|waited| &waited.arguments);
        let going = waited.filter(|argument| argument.operation == ChangeOperation::Remove);
        let others = going.map(|waits| &waits.argument).filter(|word| !self.add_arguments.contains(word));
        self.remove_arguments.iter().chain(others).cloned().collect()
    }

    /// Whether kernel arguments change.
    pub fn has_arguments(&self) -> bool {
        !self.add_arguments.is_empty() || !self.gone().is_empty()
    }

    /// Whether only kernel arguments change.
    pub fn is_of_arguments(&self) -> bool {
        self.old_image == self.new_image
            && self.old_kernel == self.new_kernel
            && self.add_extensions.is_empty()
            && self.remove_extensions.is_empty()
    }

    /// The arguments that waited at the begin, if that was in this boot.
    pub fn waits(&self, boot_id: &str) -> &[WaitingArgument] {
        self.waited.as_ref().map_or(&[], |waited| waited.in_boot(boot_id))
    }

    /// The change for a rollback that stages the waiting arguments again, on the booted OS.
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
