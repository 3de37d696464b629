//! The things that a record, a mount or a link may concern.
//!
//! In: watches, names, mount points. Out: things, and watches to enrol again. It owns nothing, and changes nothing. No I/O.

use super::{Concerned, Watch, WatchRegistry};
use sensor_common::op::ROLE_ANCESTOR;
use sensor_model::host::unit_name::template_of;
use sensor_model::protocol::ThingId;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

/// Endings of the directories whose links enable units.
const ENABLING: [&str; 3] = [".wants", ".requires", ".upholds"];

impl WatchRegistry {
    /// The things that a record about these watches concerns. `name`: the name in the directory that the record is about; `None`
    /// if it is about the object itself. `cut`: the record has only the beginning of the name.
    pub fn concerned(&self, watches: &[u32], name: Option<&OsStr>, cut: bool, moved: bool) -> Concerned {
        let mut concerned = Concerned::default();
        for watch_id in watches {
            let Some(watch) = self.get(*watch_id) else { continue };
            match name {
                Some(_) if cut => {
                    concerned.in_evidence.extend(self.named_in(watch));
                    concerned.in_evidence.extend(watch.everything());
                    concerned.in_evidence.extend(self.units_of(watch, None));
                    concerned.outside_evidence.extend(watch.ending());
                    for child in self.children(watch) {
                        self.add_name_change(child, &mut concerned);
                    }
                }
                Some(name) => {
                    let child = self.child(watch, name);
                    concerned.in_evidence.extend(child.into_iter().flat_map(Watch::named));
                    concerned.in_evidence.extend(watch.names_behind(name));
                    concerned.in_evidence.extend(watch.everything());
                    concerned.in_evidence.extend(self.units_of(watch, Some(name)));
                    concerned.outside_evidence.extend(watch.ending_at(name));
                    if let Some(child) = child {
                        self.add_name_change(child, &mut concerned);
                    }
                }
                None => {
                    concerned.in_evidence.extend(watch.objects());
                    if moved {
                        concerned.in_evidence.extend(watch.everything());
                        concerned.outside_evidence.extend(self.units_of(watch, None));
                        if watch.roles & ROLE_ANCESTOR != 0 {
                            self.add_below(&watch.path, &mut concerned);
                            concerned.outside_evidence.extend(watch.through());
                        }
                    }
                }
            }
        }
        for things in [&mut concerned.in_evidence, &mut concerned.outside_evidence] {
            things.sort_unstable();
            things.dedup();
        }
        concerned.stale.sort_unstable();
        concerned.stale.dedup();
        concerned
    }

    /// Everything that any change of these watches may concern: the things whose evidence covers the change, and
    /// those whose evidence does not.
    pub fn all_concerned(&self, watches: &[u32]) -> (Vec<ThingId>, Vec<ThingId>) {
        let names = self.concerned(watches, Some(OsStr::new("")), true, true);
        let object = self.concerned(watches, None, false, true);
        let mut in_evidence = names.in_evidence;
        in_evidence.extend(object.in_evidence);
        in_evidence.sort_unstable();
        in_evidence.dedup();
        (in_evidence, object.outside_evidence)
    }

    /// Watches at and below a path.
    fn from(&self, path: &Path) -> impl Iterator<Item = u32> {
        let first = self.place(path).unwrap_or_else(|at| at);
        let within = self.by_path[first..].iter().copied();
        within.take_while(move |watch_id| self.watches[*watch_id as usize].path.starts_with(path))
    }

    /// Watched names in a watched directory.
    pub(super) fn children<'a>(&'a self, directory: &'a Watch) -> impl Iterator<Item = &'a Watch> {
        let within = self.from(&directory.path).map(|watch_id| &self.watches[watch_id as usize]);
        within.filter(|child| child.path.parent() == Some(&*directory.path))
    }

    /// Things that depend on a name in a watched directory.
    fn named_in<'a>(&'a self, directory: &'a Watch) -> impl Iterator<Item = ThingId> {
        self.children(directory).flat_map(Watch::named).chain(directory.all_names_behind())
    }

    /// Adds what a change of a watch's own name may concern: the object appeared, disappeared, or is another one.
    fn add_name_change(&self, child: &Watch, concerned: &mut Concerned) {
        if child.on_a_route {
            self.add_below(&child.path, concerned);
            concerned.outside_evidence.extend(child.through());
            concerned.outside_evidence.extend(self.units_of(child, None));
        }
    }

    /// Adds the watches at and below a path, and the things below it.
    fn add_below(&self, path: &Path, concerned: &mut Concerned) {
        for watch_id in self.from(path) {
            concerned.stale.push(watch_id);
            let watch = &self.watches[watch_id as usize];
            if *watch.path != *path {
                let things = watch.objects().chain(watch.everything().iter().copied());
                concerned.outside_evidence.extend(things.filter(|thing| self.is_own(watch, *thing)));
            }
        }
        let is_below = |thing: &&ThingId| {
            let thing = &self.things[thing.index()];
            thing.starts_with(path) && **thing != *path
        };
        concerned.outside_evidence.extend(self.unwatched.iter().filter(is_below));
    }

    /// The units that a name in a watched directory concerns; `None`: the units that any name may concern.
    fn units_of<'a>(
        &'a self,
        watch: &Watch,
        name: Option<&OsStr>,
    ) -> impl Iterator<Item = &'a ThingId> + use<'a> {
        let enables = |name: &OsStr| name.to_str().is_some_and(enables_units);
        let some = name.filter(|name| watch.holds_units && !enables(name));
        let instance_of = some.and_then(OsStr::to_str).and_then(template_of).map(OsString::from);
        let all = watch.holds_units && some.is_none();
        let by_name = some.and_then(|name| self.units.get(name));
        let by_template = instance_of.and_then(|name| self.units.get(&name));
        let named = by_name.into_iter().chain(by_template).flatten();
        named.chain(all.then(|| self.units.values().flatten()).into_iter().flatten())
    }

    /// Every thing at, above or below a mount point. The mount table has paths without links, so this compares the point with the
    /// declared paths and with their routes.
    pub fn under_mount(&self, point: &Path) -> Vec<ThingId> {
        let related = |thing: &&Arc<Path>| thing.starts_with(point) || point.starts_with(thing);
        let mut found: Vec<ThingId> = (0..)
            .map(ThingId)
            .zip(&self.things)
            .filter(|(_, path)| related(path))
            .map(|(thing, _)| thing)
            .collect();
        let within = self.from(point);
        for watch_id in within {
            let watch = &self.watches[watch_id as usize];
            found.extend(watch.through().iter().chain(watch.everything()).chain(self.units_of(watch, None)));
        }
        // Over the object itself, or over something in it.
        for at in point.ancestors() {
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
            let watch = |path| self.find(path).map(|watch_id| &self.watches[watch_id as usize]);
            found.extend(watch(at).into_iter().flat_map(Watch::named));
            found.extend(watch(parent).into_iter().flat_map(|parent| parent.names_behind(name)));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Whether links in a directory enable units. Generators create their directories again at each reload, so those do not.
pub fn may_enable(directory: &Path) -> bool {
    let name = directory.file_name().and_then(OsStr::to_str);
    name.is_some_and(enables_units) && !directory.starts_with("/run/systemd/transient") && {
        let above = directory.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        above.is_some_and(|above| !above.starts_with("generator"))
    }
}

/// Whether links in a directory of this name enable units.
fn enables_units(name: &str) -> bool {
    ENABLING.iter().any(|ending| name.ends_with(ending))
}
