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
JOINED = ["data", "size", "linkstatic"]
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

def group_tests():
    """Declares tests_1, tests_2, ... of the tests that this BUILD file declared before, in the order of their names."""
    tests = [rule for _, rule in sorted(native.existing_rules().items()) if GROUPED in rule.get("tags", [])]
    for number in range((len(tests) + GROUP - 1) // GROUP):
        _group("tests_%d" % (number + 1), tests[number * GROUP:(number + 1) * GROUP])

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
