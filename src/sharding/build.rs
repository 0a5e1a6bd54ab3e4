//! Lets the tests and programs of this crate find libtorch at run time, so that nobody exports `LD_LIBRARY_PATH`.

fn main() {
    // Handed down by torch-sys, which knows which libtorch was linked.
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
