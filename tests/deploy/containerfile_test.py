"""The Containerfile copies files that exist, installs the packages that the programs need, and ends without rights."""
import os
import re
import runpy
import shutil
import subprocess
import unittest

from deploy.sources import ROOT, default_port, read

BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
PROGRAMS = runpy.run_path(os.path.join(ROOT, "tools", "package", "programs.py"))["PROGRAMS"]
# Libraries that come with other packages: libc and the compiler's are in the base, and the listed libraries depend on the rest.
IMPLIED = re.compile(r"lib(c6|gcc-s1|stdc\+\+6|fmt9|re2-9|c-ares2|bsd0|md0|tinfo6|grpc29|upb\S*|address-sorting\S*|zstd1)$|zlib1g$")


def instructions():
    """[[(instruction, text)]], a list per stage, with lines that go on joined and comments left out."""
    text = re.sub(r"(?m)^\s*#.*\n", "", read("tools", "deploy", "Containerfile"))
    stages = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((name, rest))
    return stages


class Containerfile(unittest.TestCase):
    def setUp(self):
        self.build, self.run_stage = instructions()

    def test_what_it_copies_exists(self):
        copied = set()
        for name, text in self.build:
            if name == "COPY":
                *sources, target = text.split()
                copied.update(sources)
                for source in sources:
                    self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)
                    self.assertTrue(target in (source, "./", os.path.dirname(source) + "/"), text)
        self.assertIn("WORKSPACE", copied)
        self.assertNotIn(".", copied)

    def test_every_room_that_the_programs_are_built_from_is_copied(self):
        copied = {source for name, text in self.build if name == "COPY" for source in text.split()[:-1]}
        rooms = {name for name in os.listdir(ROOT) if os.path.exists(os.path.join(ROOT, name, "BUILD.bazel"))
                 and not os.path.islink(os.path.join(ROOT, name))}  # Bazel's links
        self.assertEqual(rooms - {"docs", "tests"} - copied, set())

    def test_it_installs_the_programs_where_each_finds_the_others(self):
        """The same programs as packages have, each of which a command of `somnus` starts."""
        installs = next(text for name, text in self.build if name == "RUN" and "install -D" in text)
        self.assertEqual(tuple(re.search(r"for program in ([^;]+);", installs).group(1).split()), PROGRAMS)
        built = next(text for name, text in self.build if name == "RUN" and "run_bazel build" in text)
        for program in PROGRAMS:
            folder, name = os.path.split(program)
            self.assertRegex(built, rf"//{folder}(?:\s|:{name}\b)")
        self.assertIn(("COPY", "--from=build /opt/somnus /opt/somnus"), self.run_stage)
        self.assertIn(("ENTRYPOINT", '["/opt/somnus/tools/somnus"]'), self.run_stage)

    def test_it_ends_without_rights_and_holds_no_secret(self):
        users = [text for name, text in self.run_stage if name == "USER"]
        self.assertEqual(users, ["10001:10001"])
        for stage in (self.build, self.run_stage):
            for name, text in stage:
                self.assertNotIn(name, ("ADD", "ENV"))
                self.assertNotRegex(text, r"(?i)password|secret|token|api.?key|https?://")

    def test_ports_are_the_defaults(self):
        ports = next(text for name, text in self.run_stage if name == "EXPOSE").split()
        self.assertEqual([int(port) for port in ports], [default_port("port"), default_port("grpc-port")])

    @unittest.skipUnless(shutil.which("dpkg") and all(os.path.exists(os.path.join(BIN, name)) for name in PROGRAMS),
                         "the programs are not built here")
    def test_its_packages_are_those_that_the_programs_need(self):
        linked = subprocess.run(["ldd", *(os.path.join(BIN, name) for name in PROGRAMS)], capture_output=True, text=True,
                                check=True).stdout
        paths = set(re.findall(r"=> (/\S+)", linked))
        # The linker may have found a library under another path than the path in the package.
        owners = subprocess.run(["dpkg", "-S", *paths, *map(os.path.realpath, paths)], capture_output=True, text=True, check=False)
        needed = {line.split(":")[0] for line in owners.stdout.splitlines()}
        installs = next(text for name, text in self.run_stage if name == "RUN" and "apt-get install" in text)
        installed = set(re.findall(r"\blib[\w.+-]+", installs))
        self.assertEqual({name for name in needed if not IMPLIED.match(name)}, installed)
