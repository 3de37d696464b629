//! What ostree notes about the boot.

use super::bytes;
use crate::ostree::backing_root;

/// What `GLib` made of the values that `ostree-prepare-root` writes on a composefs root: device 64769, inode number 4711, and five truth values.
const BOOTED: &str = "6261636b696e672d726f6f742d6465766963652d696e6f64650000000000000001fd000000000000671200000000000000287474291a0000726f6f742e7472616e7369656e7400000000620f00000000726f6f742e7472616e7369656e742d726f000000000000000000621200000000636f6d706f73656673000000000000000100620a00000000636f6d706f736566732e76657269747900000000000000000000621100000000737973726f6f742d726f0000000000000100620b364c6c84a4bc";

#[test]
fn the_directory_of_the_booted_deployment_is_the_one_that_ostree_noted() {
    let whole = bytes(BOOTED);
    assert_eq!(backing_root(&whole), Some((64769, 4711)));
    for length in 0..whole.len() {
        assert_eq!(backing_root(&whole[..length]), None, "{length}");
    }
    let other_key = BOOTED.replacen("6261", "6361", 1);
    assert_eq!(backing_root(&bytes(&other_key)), None);
    let other_type = BOOTED.replacen("28747429", "28747829", 1);
    assert_eq!(backing_root(&bytes(&other_type)), None);
}
