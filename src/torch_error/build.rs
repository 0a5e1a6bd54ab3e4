//! Lets the tests of this crate find libtorch at run time without `LD_LIBRARY_PATH`.

fn main() {
    // torch-sys sets this variable to the directory of the linked libtorch.
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
