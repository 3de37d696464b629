//! Unit states from links. The expected states are what `systemctl --root=… is-enabled` of systemd 252
//! printed for this very tree.

use super::*;
use sensor_model::host::install::Install;

const SYSTEM: &str = "/etc/systemd/system";
const VENDOR: &str = "/usr/lib/systemd/system";

fn unit_file(install: &str) -> String {
    format!("[Unit]\nDescription=x\n[Service]\nExecStart=/bin/true\nAlias=not-here\n[Install]\n{install}\n")
}

/// The tree of units with the states below.
fn tree() -> Host {
    let host = Host::new();
    let wants = format!("{SYSTEM}/multi-user.target.wants");
    for (name, install) in [
        ("dis", "WantedBy=multi-user.target"),
        ("en", "WantedBy=multi-user.target"),
        ("enrun", "WantedBy=multi-user.target"),
        ("vend", "WantedBy=multi-user.target"),
        ("stat", ""),
        ("staten", ""),
        ("also", "Also=en.service"),
        ("hasalias", "Alias=al.service"),
        ("hasalias2", "Alias=al2.service"),
        ("h3", "Alias=al3.service\nWantedBy=multi-user.target"),
        ("t@", "WantedBy=multi-user.target"),
        ("td@", "WantedBy=multi-user.target\nDefaultInstance=d"),
        ("tv@", "WantedBy=multi-user.target"),
        ("ta@", "WantedBy=multi-user.target\nDefaultInstance=d\nAlias=tx@.service"),
        ("dang", "WantedBy=multi-user.target"),
        ("wrong", "WantedBy=multi-user.target"),
        ("other", "WantedBy=multi-user.target"),
        ("renamed", "WantedBy=multi-user.target"),
        ("fileinwants", "WantedBy=multi-user.target"),
        ("dropin", ""),
        ("fullymasked", "WantedBy=multi-user.target"),
    ] {
        host.file(&format!("{VENDOR}/{name}.service"), &unit_file(install));
    }
    for name in ["lnk", "lnken", "lnkr"] {
        host.file(&format!("/opt/{name}.service"), &unit_file("WantedBy=multi-user.target"));
    }
    host.file(&format!("{SYSTEM}/own.service"), &unit_file("WantedBy=multi-user.target"));
    host.file(&format!("{SYSTEM}/ownreq.service"), &unit_file("RequiredBy=x.target"));
    host.file(&format!("{SYSTEM}/empty.service"), "");
    host.file(&format!("{SYSTEM}/dropin.service.d/a.conf"), "[Install]\nWantedBy=a.target\n");
    host.file("/run/systemd/generator/gen.service", &unit_file(""));
    host.file("/run/systemd/transient/tra.service", &unit_file(""));
    host.file(&format!("{wants}/fileinwants.service"), "");
    for (target, link) in [
        (format!("{VENDOR}/en.service"), format!("{wants}/en.service")),
        (
            format!("{VENDOR}/enrun.service"),
            "/run/systemd/system/multi-user.target.wants/enrun.service".to_owned(),
        ),
        ("../vend.service".to_owned(), format!("{VENDOR}/multi-user.target.wants/vend.service")),
        ("/dev/null".to_owned(), format!("{SYSTEM}/mask.service")),
        ("/dev/null".to_owned(), format!("{SYSTEM}/fullymasked.service")),
        ("/dev/null".to_owned(), "/run/systemd/system/maskrun.service".to_owned()),
        (format!("{VENDOR}/hasalias2.service"), format!("{SYSTEM}/al2.service")),
        (format!("{VENDOR}/h3.service"), format!("{SYSTEM}/other3.service")),
        ("/opt/lnk.service".to_owned(), format!("{SYSTEM}/lnk.service")),
        ("/opt/lnken.service".to_owned(), format!("{SYSTEM}/lnken.service")),
        ("/opt/lnken.service".to_owned(), format!("{wants}/lnken.service")),
        ("/opt/lnkr.service".to_owned(), "/run/systemd/system/lnkr.service".to_owned()),
        (format!("{VENDOR}/t@.service"), format!("{wants}/t@a.service")),
        (format!("{VENDOR}/ta@.service"), format!("{SYSTEM}/tx@.service")),
        (format!("{VENDOR}/td@.service"), format!("{wants}/td@d.service")),
        ("../tv@.service".to_owned(), format!("{VENDOR}/multi-user.target.wants/tv@a.service")),
        ("../ownreq.service".to_owned(), format!("{SYSTEM}/x.target.requires/ownreq.service")),
        ("/nonexistent/dang.service".to_owned(), format!("{wants}/dang.service")),
        ("/nonexistent/gone.service".to_owned(), format!("{SYSTEM}/gone.service")),
        ("/nonexistent/nofile.service".to_owned(), format!("{wants}/nofile.service")),
        (format!("{VENDOR}/other.service"), format!("{wants}/wrong.service")),
        (format!("{VENDOR}/renamed.service"), format!("{wants}/different.service")),
        (format!("{VENDOR}/staten.service"), format!("{wants}/staten.service")),
    ] {
        host.link(&target, &link);
    }
    host
}

/// The states that systemctl printed; `None` for a unit that it did not know.
const STATES: [(&str, Option<&str>); 43] = [
    ("dis", Some("disabled")),
    ("en", Some("enabled")),
    ("enrun", Some("enabled-runtime")),
    ("vend", Some("disabled")),
    ("stat", Some("static")),
    ("staten", Some("enabled")),
    ("also", Some("indirect")),
    ("mask", Some("masked")),
    ("fullymasked", Some("masked")),
    ("maskrun", Some("masked-runtime")),
    ("empty", Some("masked")),
    ("hasalias", Some("disabled")),
    ("al", None),
    ("hasalias2", Some("enabled")),
    ("al2", Some("alias")),
    ("h3", Some("indirect")),
    ("other3", Some("alias")),
    ("lnk", Some("linked")),
    ("lnken", Some("enabled")),
    ("lnkr", Some("linked-runtime")),
    ("t@", Some("indirect")),
    ("t@a", Some("enabled")),
    ("t@b", Some("disabled")),
    ("td@", Some("enabled")),
    ("td@d", Some("enabled")),
    ("td@e", Some("disabled")),
    ("ta@", Some("enabled")),
    ("ta@a", Some("disabled")),
    ("tx@", Some("alias")),
    ("tv@", Some("disabled")),
    ("tv@a", Some("static")),
    ("own", Some("disabled")),
    ("ownreq", Some("enabled")),
    ("dang", Some("enabled")),
    ("gone", None),
    ("nofile", None),
    ("wrong", Some("enabled")),
    ("other", Some("disabled")),
    ("renamed", Some("disabled")),
    ("dropin", Some("disabled")),
    ("fileinwants", Some("disabled")),
    ("gen", Some("generated")),
    ("tra", Some("transient")),
];

fn state_of(host: &Host, name: &str) -> Option<String> {
    match host.observer.observe(&unit(&format!("{name}.service"))).observation {
        Observation::Unit(unit) => unit.file_state,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn states_from_links_are_those_that_systemctl_prints() {
    let host = tree();
    let wrong: Vec<_> = STATES
        .iter()
        .map(|(name, state)| (*name, *state, state_of(&host, name)))
        .filter(|(_, state, found)| *state != found.as_deref())
        .collect();
    assert!(wrong.is_empty(), "unit, systemctl, ours: {wrong:#?}");
}

/// Compares the table with this machine's systemctl, if it has one.
#[test]
fn this_machines_systemctl_prints_the_states_of_the_table() {
    let host = tree();
    let root = format!("--root={}", host.root.path().display());
    let names: Vec<_> = STATES.iter().filter(|(name, _)| !name.starts_with("t@")).collect();
    for (name, state) in names {
        let unit = format!("{name}.service");
        let Ok(output) = std::process::Command::new("systemctl").args([&root, "is-enabled", &unit]).output()
        else {
            println!("skipped: no systemctl here");
            return;
        };
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        // From systemd 253 on, systemctl prints a state for a missing unit.
        let printed = Some(printed.as_str()).filter(|state| !matches!(*state, "" | "not-found"));
        assert_eq!(printed, *state, "{name}");
    }
}

#[test]
fn the_observation_of_a_mask_has_the_links_target() {
    let host = tree();
    host.file("/dev/null", "");
    for (name, masked, resolved) in [
        ("mask", true, Some("/dev/null")),
        ("lnk", false, Some("/opt/lnk.service")),
        ("own", false, Some("/etc/systemd/system/own.service")),
        ("dis", false, None),
        ("maskrun", false, None),
    ] {
        let Observation::Unit(unit) = host.observer.observe(&unit(&format!("{name}.service"))).observation
        else {
            panic!("{name}")
        };
        assert_eq!((unit.masked, unit.resolved.as_deref()), (masked, resolved.map(Path::new)), "{name}");
    }
}

#[test]
fn a_file_before_that_of_the_administrator_overrides_the_unit_unless_it_masks_it() {
    let host = tree();
    host.file("/dev/null", "");
    let overriding = |name: &str| {
        let Observation::Unit(unit) = host.observer.observe(&unit(name)).observation else {
            panic!("{name}")
        };
        unit.overridden_by
    };
    assert_eq!([overriding("mask.service"), overriding("own.service")], [None, None]);
    for directory in ["/run/systemd/transient", "/etc/systemd/system.control"] {
        for name in ["mask.service", "own.service"] {
            let path = format!("{directory}/{name}");
            host.file(&path, "[Service]\nExecStart=/tmp/x\n");
            assert_eq!(overriding(name).as_deref(), Some(Path::new(&path)));
        }
    }
    host.link("/dev/null", "/etc/systemd/system.control/dis.service");
    assert_eq!(overriding("dis.service"), None);
}

#[test]
fn the_directories_that_enablement_links_into_are_opened() {
    let host = tree();
    let opened = host.observer.observe(&unit("en.service")).opened;
    let paths: Vec<_> = opened.iter().map(|opened| opened.path.to_str().unwrap()).collect();
    for path in [SYSTEM, "/etc/systemd/system/multi-user.target.wants", "/run/systemd/system"] {
        assert_eq!(paths.iter().filter(|opened| **opened == path).count(), 1, "{path} in {paths:?}");
    }
}

#[test]
fn an_install_section_is_read_as_systemd_reads_it() {
    let text = "[Install]\n# c\nWantedBy=a.target \\\n  b.target\nWantedBy=\nRequiredBy=c.target\n\
                Alias = x.service y.service\n[Service]\nWantedBy=no.target\n[Install]\nAlso=z.service\n\
                DefaultInstance=i\nUnknown=1\nbroken\n";
    let mut install = Install::default();
    install.add(text);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let expected = Install {
        directories: words(&["c.target.requires"]),
        aliases: words(&["x.service", "y.service"]),
        also: words(&["z.service"]),
        default_instance: Some("i".to_owned()),
    };
    assert_eq!(install, expected);
}

#[test]
fn the_install_directories_come_from_the_units_file_and_drop_ins() {
    let host = tree();
    host.file(&format!("{SYSTEM}/en.service.d/10-more.conf"), "[Install]\nRequiredBy=other.target\n");
    let mut found = host.observer.install_directories("en.service");
    found.sort();
    assert_eq!(found, ["multi-user.target.wants", "other.target.requires"]);
    assert_eq!(host.observer.install_directories("no-such.service"), Vec::<String>::new());
}
