"""Repository rules that expose Debian system packages, and sources that Debian does not have, as cc_library targets."""

def _run(ctx, args):
    result = ctx.execute(args)
    if result.return_code != 0:
        fail("%s failed: %s" % (" ".join([str(a) for a in args]), result.stderr))
    return [t for t in result.stdout.strip().split(" ") if t]

def _pkg_config_impl(ctx):
    tool = ctx.which("pkg-config")
    if not tool:
        fail("pkg-config is not on PATH")
    cflags = _run(ctx, [tool, "--cflags"] + ctx.attr.modules)
    libs = _run(ctx, [tool, "--libs"] + ctx.attr.modules)
    includes = [f[2:] for f in cflags if f.startswith("-I") and f != "-I/usr/include"]
    if includes:
        fail("non-default include dirs need symlinks: %s" % includes)
    defines = [f[2:] for f in cflags if f.startswith("-D")]
    ctx.file("BUILD.bazel", """
cc_library(
    name = "{name}",
    defines = {defines},
    linkopts = {linkopts},
    deps = select({{
        "@//:tsan": {tsan_deps},
        "//conditions:default": [],
    }}),
    visibility = ["//visibility:public"],
)
""".format(
        name = ctx.name,
        defines = repr(defines),
        linkopts = repr(libs),
        tsan_deps = repr(ctx.attr.tsan_deps),
    ))

pkg_config_repository = repository_rule(
    implementation = _pkg_config_impl,
    attrs = {
        "modules": attr.string_list(mandatory = True),
        # Labels that come with the library under --config=tsan.
        "tsan_deps": attr.string_list(),
    },
    environ = ["PKG_CONFIG_PATH"],
    local = True,
    configure = True,
)

def _system_library_impl(ctx):
    ctx.file("BUILD.bazel", """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
""".format(name = ctx.name, linkopts = repr(ctx.attr.linkopts)))

system_library_repository = repository_rule(
    implementation = _system_library_impl,
    attrs = {"linkopts": attr.string_list()},
    local = True,
)

def _optional_library_impl(ctx):
    archive = ctx.attr.archive
    found = ctx.path("/usr/include/" + ctx.attr.header).exists
    if found and archive:
        # A compiler that does not find the archive prints its name alone.
        compiler = ctx.which("g++")
        found = compiler != None and _run(ctx, [compiler, "-print-file-name=" + archive])[0] != archive
    linkopts = ["-l:" + archive] if archive else ["-l" + ctx.attr.library] if ctx.attr.library else []
    ctx.file("BUILD.bazel", """
cc_library(
    name = "{name}",
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
""".format(name = ctx.name, linkopts = repr(linkopts if found else [])))
    ctx.file("defs.bzl", "%s = %s\n" % (ctx.attr.constant, found))

# A library that the build does without where it is not installed: a constant of defs.bzl says whether it is. An archive
# is linked statically, so that a binary also starts where the library is not installed; `library` is a shared one.
optional_library_repository = repository_rule(
    implementation = _optional_library_impl,
    attrs = {
        "header": attr.string(mandatory = True),
        "archive": attr.string(),
        "library": attr.string(),
        "constant": attr.string(mandatory = True),
    },
    local = True,
    configure = True,
)

_CUDA_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "headers", hdrs = glob(["include/**"]), includes = ["include"])
cc_library(name = "cudart", linkopts = ["-L{lib}", "-Wl,-rpath,{lib}", "-lcudart"], deps = [":headers"])
# In every binary, so that it starts where CUDA is not installed.
cc_library(name = "cudart_static", linkopts = ["-L{lib}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"], deps = [":headers"])
cc_library(name = "cublas", linkopts = ["-lcublas"], deps = [":cudart"])
cc_library(name = "nccl", linkopts = ["-lnccl"], deps = [":cudart"])
cc_library(name = "driver", linkopts = ["-L{lib}/stubs", "-lcuda"], deps = [":headers"])
exports_files(["defs.bzl"])
"""

# Without CUDA: empty libraries under the same names, for targets that Bazel reads but does not build.
_NO_CUDA_BUILD = """
package(default_visibility = ["//visibility:public"])
[cc_library(name = name) for name in ["headers", "cudart", "cudart_static", "cublas", "nccl", "driver"]]
"""

def _cuda_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = ctx.path(home + "/bin/nvcc")
    if not nvcc.exists:
        ctx.file("BUILD.bazel", _NO_CUDA_BUILD)
        ctx.file("defs.bzl", "NVCC = None\n")
        return
    ctx.symlink(home + "/include", "include")
    ctx.file("BUILD.bazel", _CUDA_BUILD.format(lib = home + "/lib64"))
    ctx.file("defs.bzl", "NVCC = %s\n" % repr(str(nvcc)))

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["CUDA_HOME"],
    local = True,
    configure = True,
)

def _source_impl(ctx):
    env = ctx.os.environ
    cache = env.get("SOMNUS_CACHE") or (env.get("XDG_CACHE_HOME") or env.get("HOME", "") + "/.cache") + "/somnus"
    archive = ctx.path(cache + "/sources/" + ctx.attr.archive)
    if not archive.exists:
        fail("%s is missing: run tools/setup.sh, which fetches it" % archive)
    ctx.download_and_extract(
        url = "file://%s" % archive,
        sha256 = ctx.attr.sha256,
        stripPrefix = ctx.attr.archive[:-len(".tar.gz")],
    )
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")

# A library built from an archive in $SOMNUS_CACHE/sources, where tools/setup.sh has put it. Bazel checks the hash, so what
# is compiled is what was pinned.
source_repository = repository_rule(
    implementation = _source_impl,
    attrs = {
        "archive": attr.string(mandatory = True),
        "sha256": attr.string(mandatory = True),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
    environ = ["SOMNUS_CACHE", "XDG_CACHE_HOME", "HOME"],
)
