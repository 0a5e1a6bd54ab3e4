//! Lets the tests and programs of this crate find libtorch at run time without `LD_LIBRARY_PATH`.

fn main() {
    // The build script of torch-sys sets the variable to the directory of the linked libtorch.
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
