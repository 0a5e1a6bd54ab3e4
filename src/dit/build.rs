//! Adds libtorch's folder to the rpath, so that the tests and examples of this crate find it without `LD_LIBRARY_PATH`.

fn main() {
    // torch-sys sets this variable to the folder of the libtorch that it links.
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
