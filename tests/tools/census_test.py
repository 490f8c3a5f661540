"""The census of a made-up tree: every figure is known, and no finding makes the census fail."""
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CENSUS = os.path.join(ROOT, "tools", "census.py")

LOOP_H = '''// Of the loop, which nobody else may use: it and its parts.
#include <map>
#define HIDDEN class Hidden { int gone; };
namespace engine {

class Mail;

/* The options. */
struct Options {
  int a = 0, b{1};
  std::map<std::string, std::function<void(int)>> calls ABSL_GUARDED_BY(mu_) = {};
};

// A loop.
// One that begins the second line of a comment is not counted.
template <typename T>
class ABSL_LOCKABLE Loop final : public Base<int> {
 public:
  static constexpr int kMax = 3;
  using Call = std::function<void()>;
  enum class Kind { kOne, kTwo };

  explicit Loop(int a) : a_{a}, text_("{") {}
  ~Loop() override = default;
  Loop& operator=(const Loop&) = delete;
  bool operator<(const Loop& other) const { return a_ < other.a_; }
  std::vector<int> Step(const std::map<int, int>& steps = {}) ABSL_LOCKS_EXCLUDED(mu_);
  int Inline() const {
    if (a_ > 3) return 1;
    return 2;
  }

 private:
  class Update;
  friend class Friend;

  struct Inner {
    int x = 0;
    int Get() const { return x; }
  };

  const int a_;
  std::string text_;
  absl::Mutex mu_;
  std::unique_ptr<Update> update_ ABSL_GUARDED_BY(mu_) = nullptr;
  Inner inner_;
};

}  // namespace engine
'''

LOOP_CC = '''#include "loop.h"
namespace engine {
namespace {

int Free(int a) { return a; }

}  // namespace

std::vector<int> Loop::Step(const std::map<int, int>& steps) {
  const auto call = [&](int a) { return a < 1'000 && R"(})"[0] == '}'; };
  return {};
}

}  // namespace engine
'''

# A part: neither a function of another class nor a nested class gives the file a class of its own.
LOOP_PART_CC = '''namespace engine {

class Loop::Update {
 public:
  void Start();
};

// What a part does.
void Loop::Part() {
%s}

}  // namespace engine
''' % ("  Work();\n" * 39)

# No part: the file has a class.
OTHER_CC = '''class Other {
 public:
  void Run();

 private:
  int a_;
};

void Other::Run() {}
void Loop::Help() {}
'''

# A class of another folder, whose name this folder has, too.
ELSEWHERE_CC = '''class Loop {
  void Step();
};
void Loop::Step() {}
'''

SCRIPT = '''#!/usr/bin/env python3
"""Those are ten words of a text, and one points."""


def run():
    return "# it is no comment"  # its end
'''

PAGE = '''# What a heading says

Four words are here. They point.

```bash
its a command
```
'''


class Census(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("census", CENSUS)
        self.census = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.census)
        self.root = tempfile.mkdtemp(prefix="somnus_census_")
        self.addCleanup(shutil.rmtree, self.root)
        self.write("engine/loop.h", LOOP_H)
        self.write("engine/loop.cc", LOOP_CC)
        self.write("engine/loop_part.cc", LOOP_PART_CC)
        self.write("engine/other.cc", OTHER_CC)
        self.write("elsewhere/loop.cc", ELSEWHERE_CC)
        self.write("tools/run.py", SCRIPT)
        self.write("docs/page.md", PAGE)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def tree(self, *rooms):
        return self.census.Tree(self.root, rooms or ("docs", "elsewhere", "engine", "tools"))

    def run_census(self, *arguments):
        done = subprocess.run([sys.executable, CENSUS, "--root", self.root, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_classes(self):
        rows = {row[0]: row[1:] for row in self.tree().class_rows()}
        self.assertEqual(rows, {
            # functions, members, files, lines: of the declaration and of the bodies elsewhere
            "engine/loop.h: Loop": (6, 5, 4, 32 + 4 + 41 + 1),
            "engine/loop.h: Loop::Inner": (1, 1, 1, 4),
            "engine/loop.h: Options": (0, 3, 1, 4),
            "engine/loop_part.cc: Loop::Update": (1, 0, 1, 4),
            "engine/other.cc: Other": (1, 1, 1, 7 + 1),
            "elsewhere/loop.cc: Loop": (1, 0, 1, 3 + 1),
        })

    def test_the_largest_class_comes_first(self):
        self.assertEqual(self.tree().class_rows()[0][0], "engine/loop.h: Loop")
        self.write("engine/wide.h", "struct Wide {\n" + "  int a;\n" * 30 + "};\n")
        self.assertEqual(self.tree().class_rows()[0], ("engine/wide.h: Wide", 0, 30, 1, 32))

    def test_part_files(self):
        self.assertEqual(self.tree().part_files(), [("engine/loop_part.cc", "Loop")])
        self.write("engine/loop_part.h", "class Part {\n};\n")
        self.assertEqual(self.tree().part_files(), [])

    def test_functions(self):
        functions = {(function.path, function.owner, function.name): function.lines for function in self.tree().functions}
        self.assertEqual(functions, {
            ("engine/loop.h", "Loop", "Loop"): 1,
            ("engine/loop.h", "Loop", "operator<"): 1,
            ("engine/loop.h", "Loop", "Inline"): 4,
            ("engine/loop.h", "Loop::Inner", "Get"): 1,
            ("engine/loop.cc", "", "Free"): 1,
            ("engine/loop.cc", "Loop", "Step"): 4,
            ("engine/loop_part.cc", "Loop", "Part"): 41,
            ("engine/other.cc", "Other", "Run"): 1,
            ("engine/other.cc", "Loop", "Help"): 1,
            ("elsewhere/loop.cc", "Loop", "Step"): 1,
            ("tools/run.py", "", "run"): 2,
        })

    def test_language(self):
        tree = self.tree()
        # words, pointing words, comments, comments that begin by pointing
        self.assertEqual(tree.language("engine/loop.h"), (12 + 2 + 2 + 12 + 2, 3, 4, 1))
        self.assertEqual(tree.language("engine/loop_part.cc"), (4 + 2, 1, 2, 1))
        self.assertEqual(tree.language("tools/run.py"), (10 + 2, 3, 2, 1))
        self.assertEqual(tree.language("docs/page.md"), (6, 1, 1, 0))

    def test_only_the_rooms_that_are_named(self):
        self.assertEqual(sorted(self.tree("elsewhere", "docs").comments), ["docs/page.md", "elsewhere/loop.cc"])
        code, out, _ = self.run_census("engine")
        self.assertEqual(code, 0)
        self.assertIn("Classes: 5;", out)
        code, _, err = self.run_census("enigne")
        self.assertEqual((code, "enigne" in err), (1, True))

    def test_the_report(self):
        for number in range(81):
            self.write(f"tests/wide/{number}.py", "# A word.\n")
        code, out, err = self.run_census("--top", "1")
        self.assertEqual((code, err), (0, ""))
        rows = [line.split() for line in out.splitlines()]
        self.assertIn("leveldb 100 19.9k 106 1578 5.5 % 11.5 18 % 31 1.1 %".split(), rows)
        self.assertIn(["turbomind:", "Scheduler", "32", "13", "2", "1286"], rows)
        self.assertIn("Classes: 6; with more than 40 functions or 25 data members: 0".split(), rows)
        self.assertIn("engine/loop.h: Loop 6 5 4 78".split(), rows)
        self.assertNotIn("Other", out)  # --top 1
        self.assertIn("Part files: 1".split(), rows)
        self.assertIn("Functions over 40 lines: 1 of 11".split(), rows)
        self.assertIn("engine/loop_part.cc:9 Part 41".split(), rows)
        self.assertIn(["tests/wide", "81"], rows)

    def test_a_tree_with_every_fault_does_not_fail(self):
        self.write("engine/broken.cc", "}}} class {{{ int f( <<< \" ' // it\n")
        self.write("tools/broken.py", "def f(:\n")
        self.assertEqual(self.run_census()[0], 0)
        self.assertIn("engine/loop.h: Loop", self.run_census()[1])


if __name__ == "__main__":
    unittest.main()
