//! Compiles the C++ shim against the libtorch that torch-sys links, and adds its folder to the rpath of this crate's tests.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../torch_error/cpp");
    // torch-sys sets this variable, except in its `doc-only` build, which has no libtorch to compile against.
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    let include = Path::new(&lib).with_file_name("include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .pic(true)
        .opt_level(3)
        // The shim uses the OpenMP threads of libtorch.
        .flag("-fopenmp")
        // The vectorized and the scalar part of a loop must round alike, so contraction to FMA is off. Without errno, sqrt vectorizes.
        .flag("-ffp-contract=off")
        .flag("-fno-math-errno")
        .define("USE_C10D_GLOO", None)
        // libtorch is built with NDEBUG. Without it, RecordFunction has another layout, and its inputs cannot be read.
        .define("NDEBUG", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .include("../torch_error/cpp")
        .include("cpp/include")
        // System headers: the compiler does not report warnings in them.
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .file("cpp/all.cpp");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        with_cuda(&mut build, Path::new(&lib));
    }
    build.compile("vidtui_c10d");
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}

/// Adds the sources that need CUDA and NCCL, and their headers. PyTorch's wheels install the headers beside `torch/`, in `nvidia/`;
/// otherwise they come from the CUDA installation in `CUDA_HOME`.
fn with_cuda(build: &mut cc::Build, lib: &Path) {
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let found = lib.join("libtorch_cuda.so").exists();
    assert!(
        found,
        "the feature `cuda` needs a libtorch with CUDA, and {} has none: see CONTRIBUTING.md",
        lib.display()
    );
    let beside = lib.ancestors().nth(2).map(|packages| packages.join("nvidia"));
    let cuda_home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("include"));
    let places = beside.iter().flat_map(|n| [n.join("cu13/include"), n.join("nccl/include")]).chain(cuda_home);
    for place in places.filter(|place| place.exists()) {
        build.flag("-isystem").flag(place);
    }
    build.define("USE_C10D_NCCL", None).define("WITH_CUDA", None).file("cpp/cuda_total.cpp");
    println!("cargo:rustc-link-lib=torch_cuda");
    println!("cargo:rustc-link-lib=c10_cuda");
}
