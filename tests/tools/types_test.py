"""clients/python has types: mypy finds no error in the package, in its strict mode, and finds the errors of programs that use it."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "clients", "python")
# The last two lines are wrong.
PROGRAM = """\
from somnus import AsyncLLM, Client, LLM, SamplingParams

llm = LLM("model", tensor_parallel_size=2)
text: str = llm.generate("a", SamplingParams(temperature=0))[0].outputs[0].text
version: int = Client().update_weights([("name", (b"", "float32", (0,)))])
number: int = llm.generate("a")[0].outputs[0].text
llm.generate("a", sampling_params=3)
"""
WRONG_LINES = [6, 7]


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not there: tools/setup.sh tests")
class Types(unittest.TestCase):
    def test_the_package_and_a_program(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(PROGRAM)
            command = [sys.executable, "-m", "mypy", "--config-file=pyproject.toml", f"--cache-dir={folder}", "--no-error-summary",
                       "somnus", "examples", program]
            done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            errors = [line for line in (done.stdout + done.stderr).splitlines() if ": note:" not in line]
            self.assertEqual([line.rpartition("program.py:")[2].split(":")[0] for line in errors], list(map(str, WRONG_LINES)),
                             "\n".join(errors))


if __name__ == "__main__":
    unittest.main()
