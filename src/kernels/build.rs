//! Compiles the C++ against the libtorch that torch-sys linked, and lets this crate's tests find it at run time.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    // torch-sys sets it, except in its `doc-only` build, which has no libtorch to compile against.
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    let include = Path::new(&lib).with_file_name("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .opt_level(3)
        // The kernels share the OpenMP threads of libtorch's own loops.
        .flag("-fopenmp")
        // The compiler needs these flags to vectorize sums. The kernels do not handle infinities or NaN; the gradient
        // norm shows a step that is not finite.
        .flag("-fno-math-errno")
        .flag("-fno-trapping-math")
        .flag("-fassociative-math")
        .flag("-fno-signed-zeros")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        // Include them as system headers, so that the compiler does not report their warnings.
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .files(["cpp/ttt.cpp", "cpp/autograd.cpp", "cpp/linear.cpp"])
        .compile("vidtui_kernels");
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}
