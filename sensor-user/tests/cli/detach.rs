//! `detach`.

use crate::world::World;

#[test]
fn detach_lists_what_it_removes_and_what_stays() {
    let world = World::new();
    for path in ["pins/links-1-lsm/file_open", "pins/maps-v1/MANAGED", "run/agent.lock", "run/status.json"] {
        world.write(path, "");
    }
    let (pins, run) = (world.at("pins"), world.at("run"));
    let arguments = ["detach", "--pins", pins.to_str().unwrap(), "--run", run.to_str().unwrap()];
    let result = world.run(&arguments);
    assert_eq!((result.code, result.err.as_str()), (0, ""));
    let removed = "detached 1 kernel program, removed 1 map\n\
                   removed [HERE]/pins/links-1-lsm\n\
                   removed [HERE]/pins/maps-v1\n\
                   removed [HERE]/pins\n\
                   removed [HERE]/run\n";
    let kept = "kept the forensic log in /var/log/holdfast and the state in /var/lib/holdfast\n";
    assert_eq!(result.out, format!("{removed}{kept}"));
    assert!(!pins.exists() && !run.exists());
    let again = world.run(&arguments);
    assert_eq!(again.out, format!("detached 0 kernel programs, removed 0 maps\n{kept}"));
}

#[test]
fn a_purge_deletes_state_and_log_and_names_what_stays() {
    let world = World::new();
    for path in ["run/agent.lock", "state/canary", "state/order/holdfast", "state/mine", "log/forensic.jsonl"]
    {
        world.write(path, "");
    }
    let at = |name: &str| world.at(name).to_str().unwrap().to_owned();
    let (pins, run, state, log) = (at("pins"), at("run"), at("state"), at("log"));
    let places = ["--pins", &pins, "--run", &run, "--state", &state, "--log", &log];
    let result = world.run(&[&["detach", "--purge", "--purge-log"][..], &places].concat());
    assert_eq!((result.code, result.err.as_str()), (0, ""));
    let expected = "detached 0 kernel programs, removed 0 maps\n\
                    removed [HERE]/run\n\
                    deleted [HERE]/log/forensic.jsonl\n\
                    deleted [HERE]/log\n\
                    deleted [HERE]/state/canary\n\
                    deleted [HERE]/state/order\n\
                    kept [HERE]/state/mine: Holdfast did not make it, or another file system is mounted there\n";
    assert_eq!(result.out, expected);
    assert!(world.at("state/mine").exists() && !world.at("log").exists());
}

#[test]
fn a_refused_purge_leaves_the_kernel_programs_attached() {
    let world = World::new();
    for path in ["pins/links-1-lsm/file_open", "state/quarantine/1-1/object"] {
        world.write(path, "");
    }
    let at = |name: &str| world.at(name).to_str().unwrap().to_owned();
    let (pins, run, state) = (at("pins"), at("run"), at("state"));
    let result = world.run(&["detach", "--purge", "--pins", &pins, "--run", &run, "--state", &state]);
    assert_eq!(result.code, 3, "{}", result.out);
    assert!(result.err.contains("holdfast quarantine remove ID"), "{}", result.err);
    assert!(world.at("pins/links-1-lsm/file_open").exists());
    assert!(world.at("state/quarantine/1-1/object").exists());
}
