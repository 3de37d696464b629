//! The entry of the boot loader that starts the booted deployment.

use super::*;

#[tokio::test]
async fn arguments_are_those_of_the_booted_deployments_entry_wherever_the_kernels_argument_leads() {
    let again = format!("  debian {OLD}.1 (staged)\n    origin refspec: os/v1\n");
    let world = ostree_host((OLD, "os/v1"), (OLD, "os/v1"), "rw quiet").file("staged", &again);
    let root = world.folder.path();
    // The kernel was started with the deployment from which a soft reboot came.
    let link = root.join("ostree/boot.1/debian/y/0");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(format!("../../../deploy/debian/deploy/{NEW}.0"), &link).unwrap();
    fs::write(root.join("proc/cmdline"), "other ostree=/ostree/boot.1/debian/y/0\n").unwrap();
    let change = OsChange { add_arguments: words(&["nosmt"]), ..OsChange::default() };
    let expected = "--karg-none --karg-append=rw --karg-append=quiet --karg-append=nosmt";
    for is_there in [true, false] {
        if !is_there {
            fs::remove_file(&link).unwrap();
        }
        world.host.stage(&change, LIMIT).await.unwrap();
        assert!(deployed(&world).contains(expected), "{:?}", world.calls());
    }
    fs::remove_file(root.join("ostree/boot.1/debian/x/0")).unwrap();
    let error = world.host.stage(&change, LIMIT).await.unwrap_err().to_string();
    assert!(error.contains("/boot/loader/entries") && error.contains(OLD), "{error}");
}
