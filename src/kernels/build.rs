//! Compiles the C++ against the libtorch that torch-sys linked, and lets this crate's tests find it at run time.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../torch_error/cpp");
    // Not the folder: the code in `cuda/on_cpu` is for tests.
    for source in std::fs::read_dir("cuda").expect("the folder of the kernels").flatten().map(|entry| entry.path()) {
        if source.is_file() {
            println!("cargo:rerun-if-changed={}", source.display());
        }
    }
    // torch-sys sets this variable, except in its `doc-only` build, which has no libtorch to compile against.
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    let include = Path::new(&lib).with_file_name("include");
    let with_cuda = std::env::var_os("CARGO_FEATURE_CUDA").is_some();
    let mut build = cc::Build::new();
    build
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
        .include("../torch_error/cpp")
        // Include libtorch's headers as system headers, so that the compiler reports no warnings in them.
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .file("cpp/all.cpp");
    // Without libtorch's headers, and without options that change the rounding.
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .opt_level(3)
        .flag("-ffp-contract=off")
        .flag("-fno-math-errno")
        .flag("-fno-trapping-math")
        .file("cpp/normal_cpu.cpp")
        .compile("vidtui_normal");
    if with_cuda {
        let beside = Path::new(&lib).ancestors().nth(2).map(|packages| packages.join("nvidia"));
        let roots: Vec<PathBuf> = beside
            .map(|packages| packages.join("cu13"))
            .into_iter()
            .chain(std::env::var_os("CUDA_HOME").map(PathBuf::from))
            .collect();
        for include in roots.iter().map(|root| root.join("include")).filter(|include| include.exists()) {
            build.flag("-isystem").flag(include);
        }
        build.define("WITH_CUDA", None).compile("vidtui_kernels");
        compile_for_gpus(&roots);
        println!("cargo:rustc-link-lib=torch_cuda");
        println!("cargo:rustc-link-lib=c10_cuda");
    } else {
        build.compile("vidtui_kernels");
    }
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
}

/// The targets: GPUs from A100 on, and PTX, which the driver compiles for newer ones.
const TARGETS: [&str; 4] = [
    "arch=compute_80,code=sm_80",
    "arch=compute_90,code=sm_90",
    "arch=compute_100,code=sm_100",
    "arch=compute_90,code=compute_90",
];

/// Compiles the CUDA kernels with the nvcc that the variable NVCC names, or that is in one of these CUDA installations. The CUDA runtime
/// is linked statically, as nvcc does by default.
fn compile_for_gpus(roots: &[PathBuf]) {
    println!("cargo:rerun-if-env-changed=NVCC");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let found = roots.iter().map(|root| root.join("bin/nvcc")).find(|nvcc| nvcc.exists());
    let Some(nvcc) = std::env::var_os("NVCC").map(PathBuf::from).or(found) else {
        panic!("the feature `cuda` needs nvcc: set NVCC to its path, or CUDA_HOME to that of CUDA")
    };
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let (mut library, mut reports) = (cc::Build::new(), Vec::new());
    for source in ["ttt", "fused", "normal"] {
        let (source, object) = (format!("cuda/{source}.cu"), out.join(source).with_extension("o"));
        // Call nvcc directly, because cc passes it flags of a C compiler.
        let mut compile = Command::new(&nvcc);
        compile
            .args(["-std=c++17", "-O3", "-w", "-Xcompiler", "-fPIC", "-Xptxas", "-v", "-c", &source, "-o"])
            .arg(&object);
        compile.args(TARGETS.iter().flat_map(|target| ["-gencode", target]));
        let done = compile.output().unwrap_or_else(|error| panic!("cannot start {}: {error}", nvcc.display()));
        let report = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{} cannot compile {source}: {}\n{report}", nvcc.display(), done.status);
        reports.extend(&done.stderr);
        library.object(&object);
    }
    // `cargo xtask check-cuda` compares registers and spilled bytes with the recorded ones.
    std::fs::write(out.join("ptxas.log"), reports).expect("cargo's folder is writable");
    library.compile("vidtui_kernels_cuda");
    let folders = roots.iter().flat_map(|root| [root.join("lib"), root.join("lib64")]);
    for folder in folders.filter(|folder| folder.join("libcudart_static.a").exists()) {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    println!("cargo:rustc-link-lib=static=cudart_static");
    for system in ["rt", "dl", "pthread"] {
        println!("cargo:rustc-link-lib={system}");
    }
}
