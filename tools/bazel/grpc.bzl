"""cc_grpc_library: C++ messages and stubs through the system protoc."""

def cc_grpc_library(name, srcs, deps = [], visibility = None):
    """Messages and service stubs of a set of .proto files of this package.

    Args:
      name: name of the cc_library.
      srcs: .proto files; each import of another target's file needs that target in deps.
      deps: other cc_grpc_library targets.
      visibility: as usual.
    """
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ext for ext in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]]
    native.genrule(
        name = name + "_codegen",
        srcs = srcs,
        outs = outs,
        cmd = "protoc -I. --cpp_out=$(GENDIR) --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) $(SRCS)",
    )
    native.cc_library(
        name = name + "_messages",
        srcs = [o for o in outs if o.endswith(".pb.cc") and not o.endswith(".grpc.pb.cc")],
        hdrs = [o for o in outs if o.endswith(".pb.h") and not o.endswith(".grpc.pb.h")],
        copts = ["-w"],
        deps = deps + ["@grpcpp"],
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".grpc.pb.cc")],
        hdrs = [o for o in outs if o.endswith(".grpc.pb.h")],
        # Stubs only hand calls on, and compile in two thirds of the time when optimized for size.
        copts = ["-w", "-Os"],
        deps = [":" + name + "_messages"],
        visibility = visibility,
    )
