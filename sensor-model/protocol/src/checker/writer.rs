//! The checker's writers: processes that change the managed path in every way that matters to the protocol, one atomic step at a
//! time.

use super::kernel::{A, B, DIRECTORY, Kernel, RecordSubject};

/// The steps of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Script {
    /// chmod and the like: lock, hook, effect, unlock.
    Metadata,
    /// Open for writing (which counts the writer, then fires the hook), one or two effects, close. The
    /// effects fire no hook: the read/write hook is not attached, or they are stores to a mapping.
    Write,
    /// The same with one effect, and the read/write hook attached as soon as the detector wants it.
    HookedWrite,
    /// Rename another file over the path.
    Replace,
    /// Rename a file over the path that is still open for writing, and was before it was enrolled; then
    /// write to it.
    ReplaceHeld,
    /// Unlink the path.
    Remove,
    /// Change something else that is managed, which fills the ring.
    Noise,
    /// Open the switch, switch the hooks off and on again, close it.
    Switch,
    /// The same, with an effect while they are off, which no hook reports.
    SwitchAndEdit,
}

/// One atomic step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WriterStep {
    Lock,
    LockDirectory,
    Open,
    /// The hook: count the change; announce it; count a record that found no room.
    Count,
    Announce,
    CountLost,
    /// The read/write hook: count and announce if it is attached.
    RwHook,
    /// Changes the inode from good to bad or back.
    Effect,
    /// The same, or nothing.
    MaybeEffect,
    Swap,
    Unlink,
    Unlock,
    Close,
    /// A record about something else.
    Fill,
    /// Open the switch, which counts the writer; then its hook.
    OpenSwitch,
    AnnounceSwitch,
    Off,
    On,
    /// Changes the inode at the path from good to bad or back, without a hook.
    UnseenEffect,
    CloseSwitch,
}

impl Script {
    fn steps(self) -> &'static [WriterStep] {
        use WriterStep::{
            Announce, AnnounceSwitch, Close, CloseSwitch, Count, CountLost, Effect, Fill, Lock,
            LockDirectory, MaybeEffect, Off, On, Open, OpenSwitch, RwHook, Swap, Unlink, Unlock,
            UnseenEffect,
        };
        match self {
            Self::Metadata => &[Lock, Count, Announce, CountLost, Effect, Unlock],
            Self::Write => &[Open, Count, Announce, CountLost, Effect, MaybeEffect, Close],
            Self::HookedWrite => &[Open, Count, Announce, CountLost, RwHook, CountLost, Effect, Close],
            Self::Replace => &[LockDirectory, Count, Announce, CountLost, Swap, Unlock],
            Self::ReplaceHeld => &[LockDirectory, Count, Announce, CountLost, Swap, Unlock, Effect, Close],
            Self::Remove => &[LockDirectory, Count, Announce, CountLost, Unlink, Unlock],
            Self::Noise => &[Fill, CountLost, Fill, CountLost],
            Self::Switch => &[OpenSwitch, AnnounceSwitch, CountLost, Off, On, CloseSwitch],
            Self::SwitchAndEdit => {
                &[OpenSwitch, AnnounceSwitch, CountLost, Off, UnseenEffect, On, CloseSwitch]
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Writer {
    script: Script,
    next: u8,
    /// The inode it works on.
    inode: usize,
    /// Entries that its hook found.
    enrolled: u8,
    /// A record found no room and is not counted yet.
    failed: bool,
}

/// What a step depends on beside the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Choice {
    /// Whether an effect that may be left out takes place.
    pub(super) effect: bool,
    /// The read/write hook is attached.
    pub(super) rw_hook: bool,
    /// A fault: the hook of an open fires before the writer is counted.
    pub(super) open_counts_late: bool,
}

impl Writer {
    pub(super) fn new(script: Script, kernel: &mut Kernel) -> Self {
        if script == Script::ReplaceHeld {
            kernel.writers[B] += 1;
        }
        Self { script, next: 0, inode: B, enrolled: 0, failed: false }
    }

    /// Whether the writer runs this script.
    pub(super) fn is(&self, script: Script) -> bool {
        self.script == script
    }

    /// Its next step; `None` when it has ended.
    pub(super) fn next(&self) -> Option<WriterStep> {
        self.script.steps().get(usize::from(self.next)).copied()
    }

    /// Takes the next step. Returns `false` if the step is not possible now.
    pub(super) fn step(&mut self, number: u8, choice: Choice, kernel: &mut Kernel) -> bool {
        let Some(step) = self.next() else { return false };
        match step {
            WriterStep::Lock => {
                let Some(inode) = kernel.path.filter(|inode| !kernel.locked[*inode]) else {
                    return self.give_up(kernel);
                };
                self.inode = inode;
                kernel.locked[inode] = true;
            }
            WriterStep::LockDirectory if kernel.locked[DIRECTORY] => return false,
            WriterStep::LockDirectory => kernel.locked[DIRECTORY] = true,
            WriterStep::Open => {
                let Some(inode) = kernel.path else { return self.give_up(kernel) };
                self.inode = inode;
                kernel.writers[inode] += u8::from(!choice.open_counts_late);
            }
            WriterStep::Count => self.enrolled = kernel.count(self.targets(kernel)),
            WriterStep::Announce => self.failed = kernel.announce(std::mem::take(&mut self.enrolled), number),
            WriterStep::RwHook if choice.rw_hook => {
                let enrolled = kernel.count(1 << self.inode);
                self.failed = kernel.announce(enrolled, number);
            }
            WriterStep::RwHook => {}
            WriterStep::CountLost => kernel.lost |= std::mem::take(&mut self.failed),
            WriterStep::Effect => kernel.good[self.inode] ^= true,
            WriterStep::MaybeEffect => kernel.good[self.inode] ^= choice.effect,
            WriterStep::Swap => kernel.path = Some(if kernel.path == Some(B) { A } else { B }),
            WriterStep::Unlink => kernel.path = None,
            WriterStep::Unlock if self.on_directory() => kernel.locked[DIRECTORY] = false,
            WriterStep::Unlock => kernel.locked[self.inode] = false,
            WriterStep::Close => kernel.writers[self.inode] -= 1,
            WriterStep::Fill => self.failed = !kernel.switch.off && !kernel.push(RecordSubject::Other),
            WriterStep::OpenSwitch => kernel.switch.writers += 1,
            WriterStep::AnnounceSwitch => self.failed = kernel.announce_switch(),
            WriterStep::Off => kernel.switch.off = true,
            WriterStep::On => kernel.switch.off = false,
            WriterStep::UnseenEffect => {
                if let Some(inode) = kernel.path {
                    kernel.good[inode] ^= true;
                }
            }
            WriterStep::CloseSwitch => kernel.switch.writers -= 1,
        }
        self.next += 1;
        if choice.open_counts_late && step == WriterStep::Announce && self.opens() {
            kernel.writers[self.inode] += 1;
        }
        if self.next() == Some(WriterStep::CountLost) && !self.failed {
            self.next += 1;
        }
        if self.next().is_none() {
            self.inode = B;
        }
        true
    }

    /// Ends the writer if nothing is at the path. If another writer holds the lock, the step is not possible now.
    fn give_up(&mut self, kernel: &Kernel) -> bool {
        if kernel.path.is_some() {
            return false;
        }
        self.next = u8::MAX;
        true
    }

    fn opens(&self) -> bool {
        matches!(self.script, Script::Write | Script::HookedWrite)
    }

    fn on_directory(&self) -> bool {
        matches!(self.script, Script::Replace | Script::ReplaceHeld | Script::Remove)
    }

    /// The arguments of its hook: an inode, or a directory and the inode that loses its name.
    fn targets(&self, kernel: &Kernel) -> u8 {
        if self.on_directory() {
            (1 << DIRECTORY) | kernel.path.map_or(0, |inode| 1 << inode)
        } else {
            1 << self.inode
        }
    }

    /// Whether its hook has changed the counter and has further steps.
    pub(super) fn in_hook(&self) -> bool {
        matches!(self.next(), Some(WriterStep::Announce | WriterStep::AnnounceSwitch | WriterStep::CountLost))
    }
}
