//! Properties of every expectation and every change.

use super::*;
use crate::link_exceptions::LinkExceptions;
use crate::name_patterns::NamePatterns;
use crate::{expectation::HierarchyExpectation, os::hierarchy::Cover};
use proptest::prelude::*;

fn any_owner() -> impl Strategy<Value = Owner> {
    prop_oneof![(0_u32..5).prop_map(Owner::Id), "[a-c]".prop_map(Owner::Name)]
}

fn any_expectation() -> impl Strategy<Value = Expectation> {
    let file = (0_u32..0o10000, any_owner(), any_owner(), any::<[u8; 32]>(), any::<bool>(), any::<bool>())
        .prop_map(|(mode, user, group, sha256, labelled, ssh)| {
            let keys = if ssh { vec![key(KEY_A)] } else { Vec::new() };
            let content = Some(Content { size: 1, sha256 });
            let file =
                file_thing(FileExpectation { content, keys: keys.into(), mode, user, group, ..file() });
            Expectation { ssh_keys: ssh, label: labelled.then(|| ETC.into()), ..file }
        });
    let directory = (0_u32..0o10000, any_owner(), any_owner()).prop_map(|(mode, user, group)| {
        let expected = Expected::Directory(DirectoryExpectation { mode, user, group });
        Expectation { label: Some(ETC.into()), ..expect(Thing::directory("/d"), expected) }
    });
    let link =
        ("/[a-z]{1,5}", any_owner(), any_owner(), any::<bool>()).prop_map(|(target, user, group, hard)| {
            let target = target.into();
            let link = Expected::Link(LinkExpectation { target, hard, user, group });
            let label = (!hard).then(|| ETC.into());
            Expectation { label, ..expect(Thing::link("/l"), link) }
        });
    let unit =
        (any::<Option<bool>>(), any::<Option<bool>>()).prop_map(|(enabled, masked)| unit(enabled, masked));
    let closed = proptest::collection::btree_set("[a-z]{1,3}", 0..4).prop_map(|names| {
        expect(
            Thing::closed_directory("/c.d"),
            Expected::ClosedDirectory(ClosedDirectoryExpectation {
                names: names.into_iter().collect(),
                suffix: None,
                ssh_keys: false,
                except: NamePatterns::default(),
                except_links: LinkExceptions::default(),
            }),
        )
    });
    let arguments = proptest::collection::vec("[a-z]{1,3}(=[a-z]{1,3})?", 1..4).prop_map(|mut arguments| {
        arguments.sort();
        arguments.dedup();
        expect(
            Thing::KernelArguments,
            Expected::KernelArguments(KernelArgumentsExpectation { arguments, waiting: Vec::new() }),
        )
    });
    let image = "[a-z]{1,5}(@sha256:[0-9a-f]{4})?"
        .prop_map(|image| expect(Thing::OsImage, Expected::OsImage(OsImageExpectation::of(image))));
    let hierarchy = "/(usr|etc|opt)?".prop_map(|path| {
        expect(Thing::hierarchy(path), Expected::Hierarchy(HierarchyExpectation::default()))
    });
    prop_oneof![file, directory, link, unit, closed, hierarchy, arguments, image]
}

/// One change and the kind of difference that it must give; `None` if it does not apply.
fn mutate(which: usize, expectation: &Expectation, observation: &mut Observation) -> Option<DifferenceKind> {
    let regular = matches!(expectation.expected, Expected::File(_));
    let hard = matches!(&expectation.expected, Expected::Link(link) if link.hard);
    let moded = regular || matches!(expectation.expected, Expected::Directory(_));
    match observation {
        Observation::Object(object) => match which {
            0 if moded => object.mode ^= 0o001,
            1 if regular => object.sha256 = object.sha256.map(|sum| sum.map(|byte| !byte)),
            2 if !hard => (object.uid, object.user) = (object.uid + 7, Some("nobody".to_owned())),
            3 if !hard => (object.gid, object.group) = (object.gid + 7, Some("nobody".to_owned())),
            4 if !hard => object.file_type = FileType::Fifo,
            5 if !hard => object.xattrs.push(("user.x".to_owned(), "sha256:0".to_owned())),
            6 if !hard => object.attributes.push("immutable".to_owned()),
            7 => object.mounted_over = true,
            8 if hard => object.same_inode_as_target = Some(false),
            8 if object.target.is_some() => object.target = Some("/elsewhere".into()),
            9 if expectation.label.is_some() => object.label = None,
            10 => *observation = Observation::Missing,
            11 => *observation = Observation::Unreadable { error: "EIO".to_owned() },
            _ => return None,
        },
        Observation::Unit(unit) => {
            let Expected::Unit(declared) = &expectation.expected else { return None };
            match (which % 3, declared.masked, declared.enabled) {
                (0, Some(masked), _) => unit.masked = !masked,
                (1, Some(false) | None, Some(enabled)) => {
                    unit.file_state = Some(if enabled { "disabled" } else { "enabled" }.to_owned());
                    return Some(DifferenceKind::UnitEnablement);
                }
                (2, ..) => {
                    *observation = Observation::Missing;
                    return Some(DifferenceKind::Unreadable);
                }
                _ => return None,
            }
            return Some(DifferenceKind::UnitMask);
        }
        Observation::Names { names, .. } => {
            names.push("undeclared".to_owned());
            return Some(DifferenceKind::Unexpected);
        }
        Observation::Hierarchy { covers } => {
            covers.push(Cover::Overlay { writable: true });
            return Some(DifferenceKind::MountOver);
        }
        Observation::Tree { over, .. } => {
            over.push("/usr/bin".into());
            return Some(DifferenceKind::MountOver);
        }
        Observation::KernelArguments { arguments } => {
            arguments.pop()?;
            return Some(DifferenceKind::KernelArgument);
        }
        Observation::Os(booted) => {
            booted.image = None;
            return Some(DifferenceKind::OsImage);
        }
        Observation::Missing | Observation::Unreadable { .. } => return None,
    }
    Some(match which {
        0 => DifferenceKind::Mode,
        1 => DifferenceKind::Content,
        2 | 3 => DifferenceKind::Owner,
        4 => DifferenceKind::Type,
        5 => DifferenceKind::Xattr,
        6 => DifferenceKind::Attribute,
        7 => DifferenceKind::MountOver,
        8 => DifferenceKind::LinkTarget,
        9 => DifferenceKind::Label,
        10 => DifferenceKind::Missing,
        _ => DifferenceKind::Unreadable,
    })
}

proptest! {
    #[test]
    fn what_is_as_declared_has_no_difference(expectation in any_expectation()) {
        prop_assert_eq!(compare(&expectation, &compliant(&expectation), &Ids::default()), vec![]);
    }

    #[test]
    fn every_single_change_gives_its_kind(expectation in any_expectation(), which in 0_usize..12) {
        let mut observation = compliant(&expectation);
        if let Some(kind) = mutate(which, &expectation, &mut observation) {
            let found = compare(&expectation, &observation, &Ids::default());
            prop_assert!(found.iter().any(|difference| difference.kind == kind), "{:?} not in {:?}", kind, found);
        }
    }

    #[test]
    fn two_changes_give_both_kinds(expectation in any_expectation(), which in proptest::sample::subsequence(vec![0_usize, 2, 3, 5, 6, 7, 9], 2)) {
        let mut observation = compliant(&expectation);
        // Only objects can change in two ways at once.
        let count = if matches!(observation, Observation::Object(_)) { 2 } else { 1 };
        let kinds: Vec<_> = which.iter().take(count).filter_map(|which| mutate(*which, &expectation, &mut observation)).collect();
        let found = compare(&expectation, &observation, &Ids::default());
        for kind in kinds {
            prop_assert!(found.iter().any(|difference| difference.kind == kind), "{:?} not in {:?}", kind, found);
        }
    }
}
