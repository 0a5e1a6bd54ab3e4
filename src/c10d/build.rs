//! Compiles the C++ shim against the libtorch that torch-sys linked, and lets this crate's tests find it at run time.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    // Handed down by torch-sys. It is absent only in its `doc-only` build, which has no libtorch to compile against.
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    let include = Path::new(&lib).with_file_name("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .opt_level(3)
        // As libtorch's own parallel loops, whose threads it shares.
        .flag("-fopenmp")
        // Vector bodies and scalar tails of loops must round alike, and roots need no errno.
        .flag("-ffp-contract=off")
        .flag("-fno-math-errno")
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include("cpp/include")
        // As system headers: their warnings are not ours to fix.
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .file("cpp/shim.cpp")
        .compile("vidtui_c10d");
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
