"""The size check passes on the tree as it is, and fails on each kind of thing that is too long."""
import importlib.util
import os
import shutil
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def load_check():
    spec = importlib.util.spec_from_file_location("check_sizes", os.path.join(ROOT, "tools", "check_sizes.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(lines):
    """A body that makes a signature of one line a function of `lines` lines."""
    return "{\n" + "  Work();\n" * (lines - 2) + "}\n"


# A signature, and the function's name. Each is one line.
SIGNATURES = {
    "int Free(int a, int b = 3) ": "Free",
    "void Room::Method() const ": "Room::Method",
    "Room::Room(int a) : a_{a}, b_(a) ": "Room::Room",
    "bool operator==(const Room& a, const Room& b) ": "operator==",
    "__global__ void __launch_bounds__(256) Kernel(float* x) ": "__launch_bounds__",
    "TEST(Suite, Case) ": "TEST",
    'extern "C" int Entry(const char* text) ': "Entry",
}

# Long, but no function.
HARMLESS = ("constexpr int kTable[] = {\n" + "    1,\n" * 80 + "};\n",
            "struct Plain {\n" + "  int Short() { return 1; }\n" * 80 + "};\n",
            "namespace other {\n" + "void Short() {}\n" * 80 + "}  // namespace other\n",
            "#define LONG(x) \\\n" + "  do { x; \\\n" * 80 + "  while (false)\n",
            "/* void Gone() {\n" + "  Work();\n" * 80 + "} */\n",
            'const char* const kText = R"(void Gone() {\n' + "{\n" * 80 + ')";\n')


class CheckSizes(unittest.TestCase):
    def setUp(self):
        self.check = load_check()
        self.copy = tempfile.mkdtemp(prefix="somnus_sizes_")
        self.addCleanup(shutil.rmtree, self.copy)

    def keys(self, path, text):
        full = os.path.join(self.copy, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        found = [key for key, _ in self.check.findings(self.copy)]
        os.remove(full)
        return found

    def test_tree_is_clean(self):
        self.assertEqual(self.check.problems(ROOT), [])

    def test_files(self):
        for path in ("worker/x.cc", "kernels/cuda/x.cu", "tests/x.h", "tools/x.py"):
            self.assertEqual(self.keys(path, "\n" * 400), [])
            self.assertEqual(self.keys(path, "\n" * 401), [path])
        self.assertEqual(self.keys("docs/x.py", "\n" * 401), [])

    def test_functions(self):
        for signature, name in SIGNATURES.items():
            for before, after in (("", ""), ("namespace a {\n\n", "}\n"), ("class B : public C<int> {\n public:\n  B();\n", "};\n")):
                with self.subTest(signature=signature, before=before):
                    self.assertEqual(self.keys("worker/x.cc", before + signature + body(60) + after), [])
                    self.assertEqual(self.keys("worker/x.cc", before + signature + body(61) + after), [f"worker/x.cc:{name}"])

    def test_a_signature_of_several_lines_counts(self):
        text = "int Free(int a,\n         int b) " + body(60)
        self.assertEqual(self.keys("base/x.h", text), ["base/x.h:Free"])

    def test_a_function_ends_where_it_ends(self):
        inner = "void F() {\n  if (a) {\n    const X x{1};\n    G([&] { return '{'; }, \"}\", 1'000'000);  // {\n  }\n}\n"
        self.assertEqual(self.keys("base/x.cc", inner * 40), [])
        self.assertEqual(self.keys("base/x.cc", inner * 40 + "void Long() " + body(61)), ["base/x.cc:Long"])

    def test_what_is_no_function(self):
        for text in HARMLESS:
            with self.subTest(text=text[:40]):
                self.assertEqual(self.keys("base/x.cc", text), [])
                self.assertEqual(self.keys("base/x.cc", text + "void Long() " + body(61)), ["base/x.cc:Long"])

    def test_python_functions(self):
        self.assertEqual(self.keys("tests/x.py", "def f():\n" + "    g()\n" * 59), [])
        self.assertEqual(self.keys("tests/x.py", "def f():\n" + "    g()\n" * 60), ["tests/x.py:f"])
        self.assertEqual(self.keys("tests/x.py", "def f():\ng()\n"), ["tests/x.py:"])

    def test_the_list_of_open_ones_only_shrinks(self):
        os.makedirs(os.path.join(self.copy, "base"))
        path = os.path.join(self.copy, "base", "x.cc")
        with open(path, "w", encoding="utf-8") as file:
            file.write("void Long() " + body(61))
        self.check.OPEN = set()
        self.assertEqual(self.check.problems(self.copy), ["base/x.cc:1: Long has 61 lines; a function has up to 60"])
        self.check.OPEN = {"base/x.cc:Long"}
        self.assertEqual(self.check.problems(self.copy), [])
        os.remove(path)
        self.assertEqual(self.check.problems(self.copy),
                         ["base/x.cc:Long: no longer above a limit; take it out of OPEN in tools/check_sizes.py"])


if __name__ == "__main__":
    unittest.main()
