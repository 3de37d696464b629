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
