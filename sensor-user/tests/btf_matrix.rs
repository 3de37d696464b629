//! Every offset and argument index resolves with the BTF of every kernel of the matrix.
//!
//! `cargo xtask setup` extracts the BTF. Without it the test reports this and passes, unless `HOLDFAST_REQUIRE_BTF` is set, as
//! `cargo xtask test` does.

use aya_obj::btf::BtfKind;
use holdfast::kernel::hooks::{FUNCTIONS, HOOKS, ProgramSet, TRACEPOINTS};
use holdfast::kernel::layout::{FIELDS, Layout, of_version_1};
use sensor_model::host::btf::{Btf, BtfError, Field, join};
use sensor_model::host::hierarchy::Hierarchy;
use std::collections::BTreeSet;
use std::path::PathBuf;

const SERIES: [&str; 5] = ["5.10", "6.1", "6.12", "6.18", "7.x"];

fn blobs() -> Vec<(&'static str, Vec<u8>)> {
    let cache = std::env::var_os("HOLDFAST_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/holdfast"),
        PathBuf::from,
    );
    let found: Vec<_> = SERIES
        .into_iter()
        .filter_map(|series| {
            Some((series, std::fs::read(cache.join("kernels").join(series).join("btf")).ok()?))
        })
        .collect();
    if found.len() < SERIES.len() {
        assert!(
            std::env::var_os("HOLDFAST_REQUIRE_BTF").is_none(),
            "BTF of {} kernels is missing; run `cargo xtask setup`",
            SERIES.len() - found.len()
        );
        eprintln!("BTF of {} kernels only; run `cargo xtask setup` for all", found.len());
    }
    found
}

#[test]
fn every_field_resolves_on_every_kernel() {
    for (series, blob) in blobs() {
        let btf = Btf::parse(&blob).unwrap();
        let layout = Layout::resolve(&btf, Hierarchy::default());
        assert!(layout.missing.is_empty(), "{series}: {:?}", layout.missing);
        assert_eq!(layout.values["HAS_RWSEM"], 1, "{series}");
        assert_eq!(layout.values.len(), FIELDS.len() + 6, "{series}");
    }
}

#[test]
fn groups_of_version_1_resolve_on_every_kernel() {
    for (series, blob) in blobs() {
        let btf = Btf::parse(&blob).unwrap();
        for controller in ["pids", "memory"] {
            let groups = Hierarchy { number: 7, controller: Some(controller) };
            let (set, group) = of_version_1(&btf, controller).unwrap();
            let values = Layout::resolve(&btf, groups).values;
            assert_eq!((values["OFF_CSS_SET_GROUP"], values["OFF_CSS_CGROUP"]), (set, group), "{series}");
            assert_eq!((values["CGROUP_HIERARCHY"], values["HAS_CGROUP"]), (7, 1), "{series}");
        }
        assert!(of_version_1(&btf, "no-such").is_err(), "{series}");
    }
}

#[test]
fn a_hook_is_absent_only_on_kernels_before_its_since() {
    for (series, blob) in blobs() {
        let btf = Btf::parse(&blob).unwrap();
        for hook in HOOKS {
            for set in [ProgramSet::Lsm, ProgramSet::Fentry] {
                match hook.arguments(&btf, set) {
                    Ok(values) => assert_eq!(values.len(), hook.arguments.len(), "{series} {}", hook.name),
                    Err(BtfError::NoFunction(_)) => {
                        assert!(hook.since.is_some(), "{series}: {} is missing", hook.function(set));
                    }
                    Err(error) => panic!("{series}: {}: {error}", hook.name),
                }
            }
        }
    }
}

#[test]
fn every_function_without_a_hook_exists_on_every_kernel() {
    for (series, blob) in blobs() {
        let btf = Btf::parse(&blob).unwrap();
        for function in FUNCTIONS {
            let argument = function.argument(&btf);
            assert!(argument.is_ok(), "{series}: {}: {argument:?}", function.name);
        }
    }
}

#[test]
fn the_loader_finds_the_same_numbers_in_a_blob_of_names_alone_on_every_kernel() {
    for (series, blob) in blobs() {
        let hooks =
            HOOKS.iter().flat_map(|hook| [ProgramSet::Lsm, ProgramSet::Fentry].map(|set| hook.function(set)));
        let functions = hooks.chain(FUNCTIONS.iter().map(|function| function.name.to_owned()));
        let wanted: Vec<(String, BtfKind)> = functions
            .map(|name| (name, BtfKind::Func))
            .chain(
                TRACEPOINTS.iter().map(|hook| (format!("btf_trace_{}", hook.tracepoint), BtfKind::Typedef)),
            )
            .collect();
        let names: BTreeSet<String> = wanted.iter().map(|(name, _)| name.clone()).collect();
        let fewer = Btf::parse(&blob).unwrap().with_names_only(&names).unwrap();
        assert!(fewer.len() < blob.len() / 2, "{series}: {} of {} bytes", fewer.len(), blob.len());
        let [whole, fewer] =
            [&blob, &fewer].map(|blob| aya::Btf::parse(blob, aya::Endianness::default()).unwrap());
        let mut found = 0;
        for (name, kind) in wanted {
            let number = whole.id_by_type_name_kind(&name, kind).ok();
            assert_eq!(fewer.id_by_type_name_kind(&name, kind).ok(), number, "{series}: {name}");
            found += usize::from(number.is_some());
        }
        assert!(found > HOOKS.len(), "{series}: {found}");
        let other = "security_file_lock";
        assert!(whole.id_by_type_name_kind(other, BtfKind::Func).is_ok(), "{series}");
        assert!(fewer.id_by_type_name_kind(other, BtfKind::Func).is_err(), "{series}");
    }
}

#[test]
fn offsets_equal_those_of_another_reader_on_debian_kernels() {
    // Another reader gave these offsets for the same kernels. They differ between releases.
    let expected = [("6.1", 32, 2784), ("6.12", 40, 2784)];
    for (series, blob) in blobs() {
        let Some((_, inode, start)) = expected.iter().find(|(name, ..)| *name == series) else { continue };
        let values = Layout::resolve(&Btf::parse(&blob).unwrap(), Hierarchy::default()).values;
        assert_eq!(values["OFF_FILE_F_INODE"], *inode, "{series}");
        assert_eq!(values["OFF_TASK_STRUCT_START_BOOTTIME"], *start, "{series}");
    }
}

#[test]
fn a_truncated_blob_is_an_error_and_never_a_panic() {
    for (_, blob) in blobs().into_iter().take(1) {
        for length in (0..blob.len()).step_by(blob.len() / 97) {
            assert!(Btf::parse(&blob[..length]).is_err());
        }
    }
}

/// A blob with a structure of one member at offset 8. The arguments are offsets of names in the strings.
fn blob(structure: u32, member: u32, of: u32, more: &[u32], strings: &[u8]) -> Vec<u8> {
    const STRUCT: u32 = 4 << 24 | 1;
    let types = [more, &[structure, STRUCT, 16, member, of, 64]].concat();
    let (types, length) =
        (types.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(), strings.len());
    let lengths = [24, 0, types.len(), types.len(), length]
        .map(|word| u32::try_from(word).expect("few bytes").to_le_bytes());
    [&[0x9f, 0xeb, 1, 0][..], &lengths.concat(), &types, strings].concat()
}

#[test]
fn the_numbers_of_a_modules_types_and_strings_continue_those_of_the_kernel() {
    const INTEGER: [u32; 4] = [1, 1 << 24, 8, 64];
    let kernel = blob(5, 7, 1, &INTEGER, b"\0u64\0a\0b\0");
    // Its third type, with one name of its own and one of the kernel's, has the kernel's first type as a member.
    let module = blob(9, 7, 1, &[], b"of_module\0");
    let joined = join(&kernel, &module).unwrap();
    let btf = Btf::parse(&joined).unwrap();
    assert_eq!(btf.member("a", "b", Field::Word(8)), Ok(8));
    assert_eq!(btf.member("of_module", "b", Field::Word(8)), Ok(8));
    for length in 0..module.len() {
        assert!(join(&kernel, &module[..length]).is_err());
    }
    for (_, blob) in blobs() {
        let joined = join(&blob, &module).unwrap();
        let values = |blob| Layout::resolve(&Btf::parse(blob).unwrap(), Hierarchy::default()).values;
        assert_eq!(values(&joined), values(&blob));
    }
}
