//! Sets the path of the embedded eBPF object, and its hash.
//!
//! `cargo xtask build` sets `HOLDFAST_EBPF_OBJECT`. Without it (`cargo check`, `cargo test`) the build embeds an empty
//! file, and the loader refuses it with a clear error.

use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=HOLDFAST_EBPF_OBJECT");
    let object = if let Some(object) = env::var_os("HOLDFAST_EBPF_OBJECT").map(PathBuf::from) {
        println!("cargo:rerun-if-changed={}", object.display());
        object
    } else {
        // If the script listed a file that it creates itself, cargo would run it again in each build, and compile this
        // crate again.
        let empty = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("empty.o");
        fs::write(&empty, []).expect("OUT_DIR is writable");
        empty
    };
    let bytes = fs::read(&object).unwrap_or_else(|error| panic!("read {}: {error}", object.display()));
    println!("cargo:rustc-env=HOLDFAST_EBPF_OBJECT={}", object.display());
    println!("cargo:rustc-env=HOLDFAST_EBPF_SHA256={}", hex::encode(Sha256::digest(&bytes)));
}
