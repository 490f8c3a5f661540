"""All things that the documents name exist: files, links, flags, metrics, and the functions that the map places in a file."""
import glob
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOMS = ("base", "proto", "checkpoint", "coordinator", "worker", "kernels", "allocator", "tools", "tests", "docs", "clients")
PAGES = [os.path.join(ROOT, name) for name in ("README.md", "CONTRIBUTING.md")] + sorted(
    [path for room in ROOMS for path in glob.glob(os.path.join(ROOT, room, "**", "*.md"), recursive=True)])
# `room/path` in backticks; commands and patterns have blanks, stars or braces and are left alone.
PATH = re.compile(r"`((?:%s)/[\w./-]*)`" % "|".join(ROOMS))
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# A cell of the map: `file`, `Function`, `Function`.
CELL = re.compile(r"`([\w/]+\.(?:cc|h))`((?:, `\w+`)+)")
# In a sentence: `Function` in `file`, `Class` (`file`).
PLACED = re.compile(r"`(\w+)` (?:in|of|\()\s*`([\w/]+\.(?:cc|h))`")
COMMENT = re.compile(r"//[^\n]*")
# A block, with the comment that may stand directly above it.
MARKED_BLOCK = re.compile(r"(?:^<!-- (?:(run by) ([^\s,]+)[^\n]*|(not run): [^\n]{8,})-->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Pages of which a test runs all blocks that have no such comment.
RUN_BY = {"README.md": "tests/cluster/pages_test.py", "docs/offline.md": "tests/cluster/offline/engine_test.py"}
RUN_BY_PLACE = {"docs/book/": "tests/cluster/book_test.py", "docs/README.md": "tests/cluster/book_test.py",
                "docs/measured/": None}  # a diary: how each number was made, on the machine of that day
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Names of another program; tools/compatibility.py says which names are ours.
BESIDE_VLLM = re.compile(r"<!-- tools/compatibility.py -->.*?<!-- end -->", re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
FILE_NAME = re.compile(r"(?<![\w/.{},*-])(\w+\.(?:cc|cu|h|proto|py|sh|jsonl))(?![\w/])")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
FLAG_ROW = re.compile(r'Flag::\w+(?:<[\w:]+>)?\(\s*"([a-z0-9-]+)"')
SCRIPT_FLAG = re.compile(r"(?<!\w)--([a-z][a-z0-9-]+)")
COMMAND_ROW = re.compile(r'^ *\{"([a-z-]+)", "', re.MULTILINE)
# A command line of ours; not "somnus serves", which is a sentence.
COMMAND = re.compile(r"(?<![\w./-])(?:bazel-bin/tools/)?somnus ([a-z][a-z-]*)(?![\w-])")
COMMENT_LINE = re.compile(r"^\s*//[^\n]*|\s//[^\n]*", re.MULTILINE)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
STRINGS = re.compile(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+')  # literals that the compiler joins
METRIC = re.compile(r"\b(?:vllm|somnus):(\w+)")
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\(\w+, (\w+)\)", re.MULTILINE)
LONG_NAME = re.compile(r"\b[A-Z][A-Za-z0-9]{12,}\b")
MAX_COLUMNS = 120
# Files and flags of other programs, and files that ours write.
FOREIGN = {"bench.py", "cuda_runtime.h", "day.jsonl", "grpcpp.h", "--call-graph", "--variant", "--lzma2", "--now", "--time", "--no-name"}
FOREIGN_IN_BLOCKS = {"--rm", "--read-only", "--tmpfs", "--shm-size", "--from-literal", "--no-create-home", "--shell", "--output-format",
                     "--worker-urls", "--flag", "--seeds", "--stages"}  # the last three are of tests/simulation
EARLIER = {"docs/measured/2026-11-27_sleep.md"}  # names flags of a script of that day
# Words behind our name that belong to longer names, not to commands.
NO_COMMANDS = {"cluster", "control", "inference", "is"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def exists(path):
    """A file, a folder, or the common part of a header and a source: `kernels/cuda/gemv`."""
    return any(os.path.exists(os.path.join(ROOT, path + end)) for end in ("", ".h", ".cc", ".cu"))


class Docs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The text of every source file by path, and the words that the pages write in backticks outside of blocks."""
        cls.sources = {}
        for room in ROOMS:
            for folder, _, names in os.walk(os.path.join(ROOT, room)):
                for name in names:
                    if name.endswith((".cc", ".cu", ".h", ".jsonl", ".proto", ".py", ".sh")):
                        path = os.path.join(folder, name)
                        cls.sources[os.path.relpath(path, ROOT)] = read(path)
        cls.inline = [(os.path.relpath(page, ROOT), code) for page in PAGES
                      for code in INLINE_CODE.findall(BESIDE_VLLM.sub("", CODE_BLOCK.sub("", read(page))))]

    def test_paths_exist(self):
        missing = []
        for page in PAGES:
            for path in PATH.findall(read(page)):
                if not exists(path):
                    missing.append(f"{os.path.relpath(page, ROOT)}: {path}")
        self.assertEqual(missing, [])

    def test_links_lead_somewhere(self):
        broken = []
        for page in PAGES:
            for target in LINK.findall(read(page)):
                if not os.path.exists(os.path.join(os.path.dirname(page), target)):
                    broken.append(f"{os.path.relpath(page, ROOT)}: {target}")
        self.assertEqual(broken, [])

    def test_functions_are_where_the_map_says(self):
        page = read(os.path.join(ROOT, "docs", "architecture.md"))
        placed = [(path, name) for path, names in CELL.findall(page) for name in re.findall(r"`(\w+)`", names)]
        self.assertGreater(len(placed), 40)
        placed += [(path, name) for name, path in PLACED.findall(page)]
        wrong = []
        for path, name in placed:
            paths = [file for file in self.sources if f"/{file}".endswith(f"/{path}")]
            if not any(re.search(rf"\b{name}\b", COMMENT.sub("", self.sources[file])) for file in paths):
                wrong.append(f"{path}: {name}")
        self.assertEqual(wrong, [])

    def test_file_names_exist(self):
        known = {os.path.basename(file) for file in self.sources} | FOREIGN
        self.assertEqual([f"{page}: {name}" for page, code in self.inline for name in FILE_NAME.findall(code)
                          if name not in known], [])

    def declared_flags(self):
        """The names in flag tables and in scripts. An alias is no name for the documents."""
        declared = set(FLAG.findall("".join(CODE_BLOCK.findall(read(os.path.join(ROOT, "docs", "flags.md"))))))
        self.assertGreater(len(declared), 100)  # tests/flags compares them with --help
        for path, text in self.sources.items():
            declared |= set((SCRIPT_FLAG if path.endswith((".py", ".sh")) else FLAG_ROW).findall(text))
        return declared

    def test_flags_exist(self):
        # Each switch can be turned off.
        declared = self.declared_flags()
        self.assertEqual([f"{page}: --{name}" for page, code in self.inline for name in FLAG.findall(code)
                          if page not in EARLIER and f"--{name}" not in FOREIGN
                          and not {name, name.removeprefix("no-")} & declared], [])

    def test_commands_exist(self):
        """The commands in the pages' blocks and backticks, and in the texts of programs and scripts."""
        commands = set(COMMAND_ROW.findall(self.sources["tools/cli/main.cc"])) | {"help"}
        self.assertGreater(len(commands), 10)
        self.assertEqual([f"{where}: somnus {name}" for where, text in self.written() for name in COMMAND.findall(text)
                          if name not in commands | NO_COMMANDS], [])

    def test_flags_in_blocks_and_messages_exist(self):
        declared = self.declared_flags()
        self.assertEqual([f"{where}: --{name}" for where, text in self.written() for name in FLAG.findall(text)
                          if f"--{name}" not in FOREIGN | FOREIGN_IN_BLOCKS and name not in declared
                          and name.removeprefix("no-") not in declared], [])

    def written(self):
        """(where, text) of the commands that pages show, and of the string literals of our programs."""
        found = [(page, code) for page, code in self.inline if code.startswith("somnus ")]
        for page in PAGES:
            found += [(os.path.relpath(page, ROOT), block) for block in CODE_BLOCK.findall(read(page)) if block.startswith("```bash")]
        found += [("docs/models.textproto", read(os.path.join(ROOT, "docs", "models.textproto")))]
        for path, text in self.sources.items():
            if path.endswith((".cc", ".h")) and not path.startswith(("tests/", "kernels/")):
                found += [(path, "".join(STRING.findall(run))) for run in STRINGS.findall(COMMENT_LINE.sub("", text))]
            elif path.startswith("tools/") and path.endswith(".sh"):
                found += [(path, line) for line in text.splitlines() if not line.lstrip().startswith("#")]
        return found

    def test_every_block_is_run_or_says_why_not(self):
        """Blocks of commands and programs: by a test that names the page, or with a comment directly above the block."""
        wrong = []
        for path in PAGES:
            page = os.path.relpath(path, ROOT)
            runner = RUN_BY.get(page) or next((test for place, test in RUN_BY_PLACE.items() if page.startswith(place)), "")
            for by, test, why_not, language, text in MARKED_BLOCK.findall(read(path)):
                where = f"{page}: {text.splitlines()[0]}"
                if by and not (test.startswith("tests/") and exists(test)):
                    wrong.append(f"{where}: no such test")
                elif language in ("sh", "shell", "console") or (language == "" and "somnus serve " in text):
                    wrong.append(f"{where}: ```bash")
                elif language in ("bash", "python") and runner == "" and not by and not why_not:
                    wrong.append(f"{where}: neither is it run nor does it say why not")
        self.assertEqual(wrong, [])
        for page, test in RUN_BY.items():
            self.assertRegex(read(os.path.join(ROOT, test)), rf'(?:blocks_of|marked_blocks)\("{re.escape(page)}"')

    def test_pictures_tell_what_they_show(self):
        """Each picture has a title and a description, and is shown on a page that says the same in words."""
        pictures = glob.glob(os.path.join(ROOT, "docs", "book", "*.svg"))
        self.assertGreater(len(pictures), 3)
        shown = "".join(read(path) for path in PAGES)
        for path in pictures:
            text = read(path)
            title = re.search(r'<title id="t">(.+?)</title>', text)
            self.assertIsNotNone(title, path)
            self.assertRegex(text, r'<desc id="d">.{80,}</desc>')
            self.assertIn(f"![{title[1]}]({os.path.basename(path)})", shown)

    def test_metrics_exist(self):
        metrics = "".join(text for path, text in self.sources.items()
                          if path.startswith(("coordinator/metrics/", "coordinator/request_records.")))
        self.assertEqual([f"{page}: {name}" for page, code in self.inline for name in METRIC.findall(code)
                          if name not in metrics], [])

    def test_tests_beside_vllms_exist(self):
        """Names in the last column of the tables of docs/scheduling.md."""
        defined = set(TEST_NAME.findall("".join(text for path, text in self.sources.items() if path.startswith("tests/"))))
        rows = [line for line in read(os.path.join(ROOT, "docs", "scheduling.md")).splitlines() if line.startswith("|")]
        named = {name for row in rows for name in LONG_NAME.findall(row.split("|")[3])}
        self.assertGreater(len(named), 60)
        self.assertEqual(sorted(named - defined), [])

    def test_lines_are_short(self):
        """Rows of a table cannot be broken."""
        self.assertEqual([f"{os.path.relpath(page, ROOT)}:{number}" for page in PAGES
                          for number, line in enumerate(read(page).splitlines(), 1)
                          if len(line) > MAX_COLUMNS and not line.startswith("|")], [])

    def test_the_tables_beside_vllm_are_those_of_the_sources(self):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "compatibility.py"), "--check"], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_fetched_archives_are_pinned_alike(self):
        """The script that fetches an archive, the build that reads the archive, and the page name one version and one hash."""
        script, workspace = read(os.path.join(ROOT, "tools/env.sh")), read(os.path.join(ROOT, "WORKSPACE"))
        version = re.search(r"^SOMNUS_XGRAMMAR_VERSION=(\S+)$", script, re.MULTILINE).group(1)
        digest = re.search(r"^SOMNUS_XGRAMMAR_SHA256=(\S+)$", script, re.MULTILINE).group(1)
        self.assertIn(f'archive = "xgrammar-{version}.tar.gz"', workspace)
        self.assertIn(f'sha256 = "{digest}"', workspace)
        self.assertIn(f"| **xgrammar** | none; PyPI's source distribution {version} |",
                      read(os.path.join(ROOT, "docs/dependencies.md")))


if __name__ == "__main__":
    unittest.main()
