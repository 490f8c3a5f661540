"""What the documents name exists: files, links, and the functions that the map's tables place in a file."""
import glob
import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOMS = ("base", "proto", "checkpoint", "coordinator", "worker", "kernels", "allocator", "tools", "tests", "docs")
PAGES = [os.path.join(ROOT, name) for name in ("README.md", "CONTRIBUTING.md")] + sorted(
    glob.glob(os.path.join(ROOT, "docs", "*.md")) + glob.glob(os.path.join(ROOT, "tools", "deploy", "**", "*.md"), recursive=True))
# `room/path` in backticks; commands and patterns have blanks, stars or braces and are left alone.
PATH = re.compile(r"`((?:%s)/[\w./-]*)`" % "|".join(ROOMS))
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# A cell of the map: `file`, `Function`, `Function`.
CELL = re.compile(r"`([\w/]+\.(?:cc|h))`((?:, `\w+`)+)")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def exists(path):
    """A file, a folder, or what a header and its source have in common: `kernels/cuda/gemv`."""
    return any(os.path.exists(os.path.join(ROOT, path + end)) for end in ("", ".h", ".cc", ".cu"))


class Docs(unittest.TestCase):
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
        cells = CELL.findall(page)
        self.assertGreater(len(cells), 15)
        wrong = []
        for path, names in cells:
            if not os.path.exists(os.path.join(ROOT, path)):
                continue  # test_paths_exist says so
            text = read(os.path.join(ROOT, path))
            wrong += [f"{path}: {name}" for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", text)]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
