"""cc_library: a library whose sources are compiled a few at once.

Most of the time that a source needs to compile is the time of its headers: 26 sources of coordinator/openai take 127 s of
CPU, joined by eight 39 s. A library therefore compiles up to GROUP of its sources as one (join_sources.py). What two sources
of a library define in unnamed namespaces must have different names. Equal names of types, constants and functions of the same
parameters are a compile error; functions of other parameters become overloads, among which a call chooses.

    bazel build --config=separate_sources //coordinator/openai     # each source by itself: shows a missing #include
"""

GROUP = 8

def cc_library(name, srcs = [], separate = [], **attributes):
    """native.cc_library with joined sources.

    Args:
      name: of the library.
      srcs: files, or a select() of files, which is not joined.
      separate: further sources, each compiled by itself: a source that uses a name for another thing than the rest of its room, and
        a source in whose place the simulation links a substitute or a mutation (tests/simulation).
      **attributes: further ones of native.cc_library.
    """
    sources = [source for source in srcs if source.endswith(".cc")] if type(srcs) == "list" else []
    if len(sources) < 2:
        native.cc_library(name = name, srcs = srcs + separate, **attributes)
        return
    groups = (len(sources) + GROUP - 1) // GROUP
    joined = []
    for number in range(groups):
        joined.append("%s_joined_%d.cc" % (name, number + 1))
        _join(joined[-1], sources[number * len(sources) // groups:(number + 1) * len(sources) // groups], attributes)
    native.cc_library(
        name = name,
        srcs = [source for source in srcs if source not in sources] + separate + select({
            "//tools/bazel:separate_sources": sources,
            "//conditions:default": joined,
        }),
        **attributes
    )

def _join(output, sources, attributes):
    native.genrule(
        name = output[:-len(".cc")],
        testonly = attributes.get("testonly", False),
        srcs = sources,
        outs = [output],
        cmd = "$(location //tools/bazel:join_sources.py) $(SRCS) > $@",
        tags = attributes.get("tags", []),
        tools = ["//tools/bazel:join_sources.py"],
        visibility = ["//visibility:private"],
    )
