//! Names the eBPF object that is embedded, and its hash.
//!
//! `cargo xtask build` sets `HOLDFAST_EBPF_OBJECT`. Without it (`cargo check`, `cargo test`) an empty
//! file is embedded, which the loader refuses with a clear error.

use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=HOLDFAST_EBPF_OBJECT");
    let object = if let Some(object) = env::var_os("HOLDFAST_EBPF_OBJECT").map(PathBuf::from) {
        println!("cargo:rerun-if-changed={}", object.display());
        object
    } else {
        // Cargo would run a script that lists a file of its own making again in each build, and compile this crate again.
        let empty = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("empty.o");
        fs::write(&empty, []).expect("OUT_DIR is writable");
        empty
    };
    let bytes = fs::read(&object).unwrap_or_else(|error| panic!("read {}: {error}", object.display()));
    println!("cargo:rustc-env=HOLDFAST_EBPF_OBJECT={}", object.display());
    println!("cargo:rustc-env=HOLDFAST_EBPF_SHA256={}", hex::encode(Sha256::digest(&bytes)));
}
