"""The programs and folders of an item: the bundle's, or in a rehearsal the emulator's."""
import dataclasses
import json
import os
import shutil
import sys

import logs

VARIABLE = "SOMNUS_GPU_DAY"  # a Kit as JSON
REHEARSAL_FACTOR = 10  # of budgets and limits: the emulator's machine may be slow and busy, and a rehearsal's times mean nothing
# A rehearsal's servers are small, since the emulator takes a fraction of a second for a step.
TINY_FLAGS = ("--dtype=float32", "--max-num-seqs=4", "--max-num-batched-tokens=32", "--max-model-len=128", "--kv-cache-memory-bytes=1MiB",
              "--graph-sizes=1,2,4")


@dataclasses.dataclass(frozen=True)
class Kit:
    root: str  # laid out as the repository and bazel-bin are: worker/worker, tests/cuda/gpu_tests, tools/bench/shapes ...
    logs: str
    scratch: str
    rehearse: bool = False
    library_path: str = ""
    torch_python: str = ""  # a Python with PyTorch, or nothing

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def log(self, name):
        return os.path.join(self.logs, f"{name}.log")

    def open_log(self, name):
        return logs.Log(self.log(name))

    def pick(self, real, rehearsed):
        return rehearsed if self.rehearse else real

    def limit(self, seconds):
        """The limit of a part of an item, which a rehearsal stretches as it stretches the item's budget."""
        return seconds * self.pick(1, REHEARSAL_FACTOR)

    def environment(self, **more):
        """The environment of the bundle's programs alone, whose libraries are in the bundle; the machine has the libraries of
        other programs."""
        cuda = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")
        folders = [self.path("lib"), cuda, os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, **self.variables(), "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder), **more}

    def variables(self):
        """The variables of every program of a day."""
        found = {"SOMNUS_LIBRARY_PATH": self.library_path} if self.library_path else {}
        return {"TEST_TMPDIR": self.scratch, "TMPDIR": self.scratch, **found}

    def served(self, shape):
        """The model and the flags of a server with random weights of a shape of tools/bench/shapes."""
        tiny = self.path("tests", "data", "tiny", "qwen3")
        if self.rehearse:
            return tiny, ("--device=cuda", *TINY_FLAGS)
        folder = os.path.join(self.scratch, shape)
        os.makedirs(folder, exist_ok=True)
        # Prompts are token ids: any tokenizer will do whose ids are below the shape's vocabulary.
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(tiny, name), folder)
        shutil.copy(self.path("tools", "bench", "shapes", shape, "config.json"), folder)
        return folder, ("--device=cuda", "--load-format=dummy")

    def text(self):
        """The value of VARIABLE. No file: a disk may be full."""
        return json.dumps(dataclasses.asdict(self))


def current():
    """The kit of the caller of this process. The modules of tools/bench/peers can be imported afterwards."""
    kit = Kit(**json.loads(os.environ[VARIABLE]))
    sys.path.append(kit.path("tools", "bench", "peers"))
    return kit
