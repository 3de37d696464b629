use super::*;

fn arguments(declared: &[&str], found: &[&str]) -> Vec<Difference> {
    waiting(declared, &[], found)
}

/// The same, if some arguments wait for the next boot.
fn waiting(declared: &[&str], waiting: &[&str], found: &[&str]) -> Vec<Difference> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let declared = KernelArgumentsExpectation { arguments: words(declared), waiting: words(waiting) };
    let expectation = expect(Thing::KernelArguments, Expected::KernelArguments(declared));
    compare(&expectation, &Observation::KernelArguments { arguments: words(found) }, &Ids::default())
}

#[test]
fn missing_kernel_arguments_are_named_together_and_others_are_no_difference() {
    assert_eq!(arguments(&["nosmt"], &["root=/dev/vda", "nosmt"]), vec![]);
    let found = arguments(&["nosmt", "rw", "mitigations=off"], &["rw"]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, DifferenceKind::KernelArgument);
    assert_eq!(found[0].text, "missing expected kernel arguments: [nosmt mitigations=off]");
}

#[test]
fn an_argument_that_waits_for_the_next_boot_is_no_difference_and_hides_no_other_one() {
    assert_eq!(waiting(&["nosmt", "rw"], &["nosmt"], &["rw"]), vec![]);
    assert_eq!(waiting(&["a=\"b c\""], &["\"a=b c\""], &[]), vec![], "in any quotes");
    let found = waiting(&["nosmt", "rw"], &["nosmt"], &[]);
    assert_eq!(found[0].text, "missing expected kernel arguments: [rw]");
    assert_eq!(waiting(&["nosmt=force"], &["nosmt"], &[]).len(), 1);
}

#[test]
fn another_booted_image_is_reported_with_both_names() {
    let declared = OsImageExpectation::of("quay.io/os@sha256:1");
    let expectation = expect(Thing::OsImage, Expected::OsImage(declared));
    let booted = Deployment { image: Some("quay.io/os@sha256:2".to_owned()), ..Deployment::default() };
    let found = compare(&expectation, &Observation::Os(booted), &Ids::default());
    assert_eq!(found[0].kind, DifferenceKind::OsImage);
    assert_eq!(
        found[0].text,
        "expected target osImageURL \"quay.io/os@sha256:1\", have \"quay.io/os@sha256:2\""
    );
}

#[test]
fn the_image_that_the_cluster_built_takes_the_place_of_the_config_s() {
    let declared = OsImageExpectation::of("quay.io/os@sha256:1");
    let expectation = expect(Thing::OsImage, Expected::OsImage(declared));
    let booted = |image: &str| {
        let booted = Deployment {
            image: Some(image.to_owned()),
            digest: image.split_once('@').map(|(_, digest)| digest.to_owned()),
            cluster_image: Some("registry.local/built@sha256:2".to_owned()),
            ..Deployment::default()
        };
        compare(&expectation, &Observation::Os(booted), &Ids::default())
    };
    assert_eq!(booted("registry.local/built@sha256:2"), vec![]);
    assert_eq!(booted("mirror.local/built@sha256:2"), vec![], "the same digest is the same image");
    let config = booted("quay.io/os@sha256:1");
    assert_eq!(
        (&*config[0].expected, &*config[0].found),
        ("registry.local/built@sha256:2", "quay.io/os@sha256:1")
    );
    assert!(config[0].text.ends_with("and the node booted the config's"), "{}", config[0].text);
    let other = booted("quay.io/os@sha256:3");
    let end = "neither that one nor the config's, \"quay.io/os@sha256:1\"";
    assert!(other[0].text.ends_with(end), "{}", other[0].text);
}

#[test]
fn an_image_that_the_cluster_built_and_that_waits_for_the_reboot_is_no_difference() {
    let declared = OsImageExpectation::of("quay.io/os@sha256:1");
    let expectation = expect(Thing::OsImage, Expected::OsImage(declared));
    let booted = |built: Option<&str>, staged| {
        let booted = Deployment {
            image: Some("registry.local/built@sha256:1".to_owned()),
            cluster_image: built.map(str::to_owned),
            cluster_image_is_staged: staged,
            ..Deployment::default()
        };
        compare(&expectation, &Observation::Os(booted), &Ids::default()).len()
    };
    let next = Some("registry.local/built@sha256:2");
    assert_eq!((booted(next, true), booted(next, false), booted(None, true)), (0, 1, 1));
}

#[test]
fn an_unreadable_booted_deployment_is_not_compliant() {
    let declared = OsImageExpectation::of("a");
    let expectation = expect(Thing::OsImage, Expected::OsImage(declared));
    let found = compare(&expectation, &Observation::Missing, &Ids::default());
    assert_eq!(found[0].kind, DifferenceKind::Unreadable);
}

/// A sealed tree.
fn tree() -> Expectation {
    let sealed = SealedTree { by: SealKind::DmVerity, image: [7; 32] };
    let tree = TreeExpectation { sealed, entries: 100_000 };
    expect(Thing::Tree { path: Path::new("/usr").into() }, Expected::Tree(tree))
}

#[test]
fn a_sealed_tree_is_compliant_only_while_it_is_the_same_one_and_nothing_hides_a_part_of_it() {
    let kinds = |sealed, over: &[&str]| -> Vec<DifferenceKind> {
        let over = over.iter().map(PathBuf::from).collect();
        let found = compare(&tree(), &Observation::Tree { sealed, over }, &Ids::default());
        found.iter().map(|difference| difference.kind).collect()
    };
    let same = Some(SealedTree { by: SealKind::DmVerity, image: [7; 32] });
    assert_eq!(kinds(same, &[]), []);
    assert_eq!(kinds(same, &["/usr/bin/a", "/usr/lib"]), [DifferenceKind::MountOver; 2]);
    for other in [
        None,
        Some(SealedTree { by: SealKind::FsVerity, image: [7; 32] }),
        Some(SealedTree { by: SealKind::DmVerity, image: [8; 32] }),
    ] {
        assert_eq!(kinds(other, &["/usr/bin/a"]), [DifferenceKind::Unreadable], "{other:?}");
    }
}

#[test]
fn an_observation_of_its_directory_does_not_make_a_sealed_tree_compliant() {
    let expectation = tree();
    let directory = ObjectObservation::new(FileType::Directory, 0o755, 0, 0);
    for observation in [Observation::Object(Box::new(directory)), Observation::Missing] {
        assert_eq!(compare(&expectation, &observation, &Ids::default()).len(), 1, "{observation:?}");
    }
}
