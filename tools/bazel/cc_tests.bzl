"""cc_test and group_tests: the tests of a folder, compiled and linked a few files at once.

Most of the time that a small test needs to compile is the time of its headers. `bazel test //...` therefore compiles up
to GROUP files of a folder as one source (join_sources.py) and links one program of them, in a quarter of the time; the
test of a single file stays as a target for whoever works on that file:

    bazel test //tests/scheduler:window_test      # one file
    bazel test //tests/scheduler:all              # the folder, in groups

A test that has options, or "alone = True" (a test of what belongs to the process), is a program of its own in both.
"""

GROUP = 8
GROUPED = "grouped"
SIZES = ["small", "medium", "large"]
JOINED = ["data", "linkstatic", "size"]
GTEST = ["@absl", "@gtest", "@gtest_main"]

def cc_test(name, srcs = None, deps = [], alone = False, gtest = True, **attributes):
    """native.cc_test with GoogleTest and Abseil, which group_tests() may join with other tests of the folder.

    Args:
      name: of the test.
      srcs: NAME.cc unless given.
      deps: beside GoogleTest and Abseil.
      alone: the test runs in a process of its own.
      gtest: False for a test with a main() of its own, which depends on deps alone.
      **attributes: further ones of native.cc_test.
    """
    if not alone and not [name for name in attributes if name not in JOINED]:
        attributes["tags"] = ["manual", GROUPED]
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        deps = deps + (GTEST if gtest else []),
        **attributes
    )

def cc_tests(names, deps, hdrs = [], **attributes):
    """A cc_test of each name, from NAME.cc, with the same headers, dependencies and attributes."""
    for name in names:
        cc_test(name = name, srcs = hdrs + [name + ".cc"], deps = deps, **attributes)

def group_tests(deps = [], hdrs = [], data = [], group = GROUP):
    """Joins the tests of a folder as tests_1, tests_2, ..., in the order of their names.

    Each *_test.cc that no test above has as a source is a test with these dependencies. A new file needs no line.

    Args:
      deps: of these tests.
      hdrs: headers that these tests share and no library has.
      data: of these tests.
      group: so many tests are one program.
    """
    declared = {
        source.split(":")[-1]: None
        for rule in native.existing_rules().values()
        if rule["kind"] == "cc_test"
        for source in rule["srcs"]
    }
    names = [file[:-len(".cc")] for file in native.glob(["*_test.cc"]) if file not in declared]
    cc_tests(names, deps, hdrs, data = data)
    tests = [rule for _, rule in sorted(native.existing_rules().items()) if GROUPED in rule.get("tags", [])]
    for number in range((len(tests) + group - 1) // group):
        _group("tests_%d" % (number + 1), tests[number * group:(number + 1) * group])

def _group(name, tests):
    joined = [source for test in tests for source in test["srcs"] if source.endswith("_test.cc")]
    others = {source: None for test in tests for source in test["srcs"] if source not in joined}
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = joined,
        outs = [name + ".cc"],
        cmd = "$(location //tools/bazel:join_sources.py) --tests $(SRCS) > $@",
        tools = ["//tools/bazel:join_sources.py"],
    )
    native.cc_test(
        name = name,
        size = SIZES[max([SIZES.index(test.get("size") or "medium") for test in tests])],
        srcs = [name + ".cc"] + others.keys(),
        deps = {label: None for test in tests for label in test["deps"]}.keys(),
        data = {label: None for test in tests for label in test.get("data") or []}.keys(),
        linkstatic = True,
    )
