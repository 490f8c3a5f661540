"""The pages of the book run as written: every block of docs/README.md and docs/book without a comment above that says why not.
A page has one server at most, on a machine of the page's own."""
import glob
import importlib.util
import os
import re
import unittest

from cluster.harness import ROOT
from cluster.harness.page_blocks import Machine, marked_blocks
from cluster.harness.python_client import CLIENT

PAGES = ["docs/README.md", *sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "docs", "book", "*.md")))]
# Words that the blocks of a page write, in this order.
SAID = {
    "getting_started": (r"awake", "Paris", r'"finish_reason":"', "Paris"),
    "serving": (r"data: \{.*Paris", r"data: \[DONE\]", r'"logprobs":\{', r'"embedding":"', r'"param":"temperature"', r'"text":"'),
    "sleep": (r"freed", r"asleep", r"mapped", r'"status":"sleeping"', r'\{"is_sleeping":true\}', r'"status":"awake"', "Paris"),
    "many_models": (r"(?m)^small .*pinned", r"(?m)^code ", r"(?m)^small .*pinned", r"(?m)^code ", "asleep at level 1", "mapped"),
    "reinforcement_learning": (r'"status":"sleeping"', r'"status":"reloaded"', r'"status":"awake"', r'"weight_version":7',
                               r'"weight_versions":\[\{"version":"7","start":0,"end":4\}\]', r'\{"is_paused":true\}', r'"status":"resumed"'),
    "structured_output_and_tools": (r'\\"population\\": ?\d', r'"text":"(yes|no)"', r'"text":"\d{4}-\d\d-\d\d"',
                                    r'"code":"unsupported_schema"', r'"name":"get_weather"'),
    "clusters": (r"(?m)^.*\b1\b.*cpu", "Paris"),
    "operating": (r"awake", r'somnus:group_epoch\S* 1\n', "Paris", r"somnus:recoveries_total\S* 1\n"),
    "performance": (r"tokens",),
    "security": (r"401\n", r'"text":"', r"awake", r"401\n$"),
}


def name_of(page):
    return os.path.basename(page)[:-len(".md")]


class Book(unittest.TestCase):
    def test_every_page_with_blocks_is_expected_to_say_something(self):
        self.assertEqual(sorted(name_of(page) for page in PAGES if marked_blocks(page, to_run=True)), sorted(SAID))

    def run_page(self, page):
        said = ""
        with Machine() as machine:
            for language, text in marked_blocks(page, to_run=True):
                if language == "python" and "openai" in text and not importlib.util.find_spec("openai"):
                    self.skipTest("the openai package is not installed: tools/setup.sh tests")
                if "somnus serve " in text:
                    machine.serve(text)
                else:
                    said += machine.run(language, text, PYTHONPATH=CLIENT)
        place = 0
        for words in SAID[name_of(page)]:
            found = re.compile(words).search(said, place)
            self.assertIsNotNone(found, f"{words} behind the first {place} characters of:\n{said}")
            place = found.end()


def add_case(page):
    def case(self):
        self.run_page(page)
    setattr(Book, f"test_{name_of(page)}", case)


for one in PAGES:
    if name_of(one) in SAID:
        add_case(one)
