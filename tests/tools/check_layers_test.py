"""The layer check passes on the present tree, and fails on each kind of forbidden arrow planted in a copy."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHECK = os.path.join(ROOT, "tools", "check_layers.py")
ROOMS = ("base", "proto", "allocator", "kernels", "checkpoint", "worker", "coordinator", "tools")


def check(root):
    done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.copy = tempfile.mkdtemp(prefix="somnus_layers_")
        self.addCleanup(shutil.rmtree, self.copy)
        for room in ROOMS:
            shutil.copytree(os.path.join(ROOT, room), os.path.join(self.copy, room))

    def plant(self, path, text):
        full = os.path.join(self.copy, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "a", encoding="utf-8") as file:
            file.write(text)

    def test_tree_is_clean(self):
        code, output = check(ROOT)
        self.assertEqual((code, output), (0, ""))

    def test_forbidden_includes_fail(self):
        arrows = {
            "base/planted.h": "proto/status.h",
            "text/jinja/planted.cc": "text/tokenizer/tokenizer.h",
            "coordinator/request/planted.h": "coordinator/engine/engine.h",
            "coordinator/engine/planted.h": "coordinator/several_models/shared_devices.h",
            "coordinator/openai/planted.h": "coordinator/http_server/api_server.h",
            "text/tokenizer/planted.h": "coordinator/request/request.h",
            "kernels/planted.h": "allocator/sleepable_allocator.h",
            "allocator/planted.cc": "kernels/tensor.h",
            "worker/planted.cc": "coordinator/engine/engine.h",
            "coordinator/planted.cc": "worker/comm/communicator.h",
            "coordinator/scheduler/planted.cc": "coordinator/executor/executor.h",
            "checkpoint/planted.cc": "kernels/tensor.h",
            "proto/planted.h": "checkpoint/checkpoint.h",
            "tools/planted.cc": "coordinator/engine/engine.h",
        }
        for path, header in arrows.items():
            self.plant(path, f'#include "{header}"\n')
        code, output = check(self.copy)
        self.assertEqual(code, 1)
        for path, header in arrows.items():
            self.assertIn(f"{path}:1: ", output)
            self.assertIn(f"may not know {header}", output)
        self.assertEqual(len(output.splitlines()), len(arrows))

    def test_forbidden_label_fails(self):
        self.plant("worker/planted/BUILD.bazel",
                   'cc_library(name = "x", deps = select({"//:cuda": ["//coordinator/engine"], "z": []}))\n')
        code, output = check(self.copy)
        self.assertEqual(code, 1)
        self.assertIn("worker/planted/BUILD.bazel:1: worker may not know coordinator/engine", output)

    def test_visibility_is_no_dependency(self):
        self.plant("kernels/planted/BUILD.bazel",
                   'cc_library(name = "x", visibility = ["//worker:__subpackages__"], deps = ["//kernels:tensor"])\n')
        self.assertEqual(check(self.copy), (0, ""))

    def test_two_classes_of_one_name_fail(self):
        self.plant("coordinator/planted.h", "namespace somnus {\nclass LoopMail;\nclass EngineLoop : public X {\n};\n}\n")
        self.plant("worker/planted.h", "namespace somnus::own {\nclass EngineLoop {\n};\n}\n")
        code, output = check(self.copy)
        self.assertEqual(code, 1)
        self.assertRegex(output, r"has a class EngineLoop, too")
        self.assertEqual(len(output.splitlines()), 1, output)


if __name__ == "__main__":
    unittest.main()
