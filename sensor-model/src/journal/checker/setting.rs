//! The applies that the checker runs.
//!
//! In: nothing. Out: the settings, each with the first record of its journal.

use super::super::{
    Act, Action, Begin, Boot, Fallback, FileState, Metadata, OverwrittenPath, PathState, Target,
};

/// The object at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Object {
    Nothing,
    Old,
    New,
    Foreign,
    /// The object that the new OS image ships.
    Shipped,
    /// A directory with attributes of both.
    HalfWay,
}

/// One apply.
#[expect(clippy::struct_excessive_bools, reason = "facts of a model, read by name")]
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) targets: Vec<(Object, Object)>,
    /// The first target is a directory that stays.
    in_place: bool,
    /// The first target is a directory that turns into a file.
    pub(super) turns: bool,
    /// The file system cannot restore the first target.
    pub(super) stubborn: bool,
    fallback: Option<Fallback>,
    reboot: bool,
    /// The OS is changed, too.
    pub(super) os: bool,
    /// A declared path has the state that the old image ships, and the new image ships this.
    pub(super) ships: Option<Object>,
    /// The action's unit does not run with the new files.
    pub(super) broken: bool,
    pub(super) deaths: u8,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            in_place: false,
            turns: false,
            stubborn: false,
            fallback: None,
            reboot: false,
            os: false,
            ships: None,
            broken: false,
            deaths: 2,
        }
    }
}

impl Setting {
    pub(super) fn all() -> Vec<Self> {
        use Object::{New, Nothing, Old};
        let pairs = [
            vec![(Old, New), (Nothing, New)],
            vec![(Old, Nothing), (Old, New)],
            vec![(Nothing, New), (Old, Nothing)],
        ];
        let mut settings = Vec::new();
        for targets in pairs {
            for (fallback, reboot) in [
                (None, false),
                (None, true),
                (Some(Fallback::Rollback), false),
                (Some(Fallback::Reboot), false),
            ] {
                settings.push(Self { targets: targets.clone(), fallback, reboot, ..Self::default() });
            }
        }
        let targets = vec![(Old, New), (Old, New)];
        for fallback in [None, Some(Fallback::Rollback)] {
            let in_place = Self { targets: targets.clone(), fallback, in_place: true, ..Self::default() };
            settings.extend([in_place.clone(), Self { stubborn: true, ..in_place }]);
            settings.push(Self { targets: targets.clone(), fallback, turns: true, ..Self::default() });
        }
        for fallback in [Fallback::Rollback, Fallback::Reboot] {
            let targets = vec![(Old, New)];
            settings.push(Self { targets, fallback: Some(fallback), broken: true, ..Self::default() });
        }
        // A change of the OS has a rollback as its fallback, and a reboot unless a policy lets it wait for one.
        for reboot in [true, false] {
            let (fallback, targets) = (Some(Fallback::Rollback), vec![(Old, New)]);
            settings.push(Self { targets, fallback, reboot, os: true, ..Self::default() });
        }
        // Another image always needs a reboot. It has the same boots as above, so one kill is enough.
        for ships in [Object::Shipped, Nothing] {
            let (fallback, ships, deaths) = (Some(Fallback::Rollback), Some(ships), 1);
            let targets = vec![(Old, New)];
            settings.push(Self {
                targets,
                fallback,
                reboot: true,
                os: true,
                ships,
                deaths,
                ..Self::default()
            });
        }
        settings
    }

    pub(super) fn begin(&self) -> Begin {
        let state = |content: Object, number: usize| match content {
            Object::Nothing => PathState::Absent,
            other if self.in_place && number == 0 => PathState::Directory(Metadata {
                mode: u32::from(other == Object::New),
                ..Metadata::default()
            }),
            Object::Old if self.turns && number == 0 => PathState::Directory(Metadata::default()),
            other => PathState::File(FileState {
                metadata: Metadata::default(),
                sha256: format!("{other:?}"),
                size: 0,
                modified_ns: None,
                hard: None,
                names: 0,
            }),
        };
        let targets = (0..)
            .zip(&self.targets)
            .map(|(number, (before, after)): (usize, _)| Target {
                path: format!("/{number}").into(),
                before: state(*before, number),
                after: state(*after, number),
            })
            .collect();
        let act = |fallback| Act {
            kind: if self.os { Action::Os } else { Action::Restart },
            unit: (!self.os).then(|| "a.service".to_owned()),
            timeout_s: 1,
            fallback,
            because: Vec::new(),
            masked: false,
        };
        Begin {
            id: 1,
            previous: None,
            rollback_to: None,
            time: String::new(),
            boot: Boot::of_kernel("1"),
            old: String::new(),
            new: String::new(),
            targets,
            unmanaged: Vec::new(),
            matching: Vec::new(),
            shipped: Vec::new(),
            released: Vec::new(),
            units: Vec::new(),
            overwritten: self
                .ships
                .iter()
                .map(|_| OverwrittenPath { path: "/again".into(), state: state(Object::New, 1) })
                .collect(),
            os: None,
            acts: self.fallback.into_iter().map(act).collect(),
            reboot: self.reboot,
            beside_mco: false,
        }
    }
}
