"""The blocks of code of a page, run as written, as if on a separate machine: a network namespace, where every port is free, and
a home folder that has the quickstart's model.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from cluster.harness import BIN, ROOT, SMOLLM2, children

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A block, and the comment directly above that says which test runs the block, or why no test does.
MARKED = re.compile(r"(?:^<!-- (run by|not run:) [^\n]*-->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
RUN = ("bash", "python")
BLOCK_S = 300
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"  # as in the pages and tools/env.sh


def blocks_of(page, section=None):
    """(language, text) of each block of the page, or of the section with this heading."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        text = file.read()
    if section is not None:
        level = section.partition(" ")[0]
        text = re.split(rf"^#{{1,{len(level)}}} ", text.split(f"\n{section}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return BLOCK.findall(text)


def marked_blocks(page, to_run):
    """(language, text) of the page's blocks of commands and programs: the blocks without a comment of that kind where `to_run`,
    else the blocks with such a comment."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return [(language, text) for mark, language, text in MARKED.findall(file.read())
                if language in RUN and (mark == "") == to_run]


class Machine:
    """A context manager; leaving the context ends the servers that still run on the machine."""

    def __init__(self):
        if BIN != os.path.join(ROOT, "bazel-bin"):
            raise unittest.SkipTest("the pages name bazel-bin, which is not what is tested here")
        if not (shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip")):
            raise unittest.SkipTest("needs unshare, nsenter (util-linux) and ip (iproute2)")
        made = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._network, self._servers = made, []
        if made.stdout.readline() != "up\n":
            made.kill()
            made.wait()
            made.stdout.close()
            raise unittest.SkipTest("may not make a network namespace")
        self._home = tempfile.TemporaryDirectory()
        models = os.path.join(self._home.name, ".cache", "somnus", "models")
        os.makedirs(models)
        os.symlink(SMOLLM2, os.path.join(models, MODEL))
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SOMNUS_", "XDG_"))}
        self.environment.update(HOME=self._home.name, TERM="dumb", PATH=os.path.join(BIN, "tools") + os.pathsep + os.environ["PATH"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self._servers:
            self._end(server)
        self._network.kill()
        self._network.wait()
        self._network.stdout.close()
        self._home.cleanup()

    @staticmethod
    def _end(server):
        """Ends the server of a block, and the server's children."""
        family = [server.pid, *children(server.pid)]
        for pid in family:
            try:
                os.kill(pid, signal.SIGTERM if pid == server.pid else signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.log.close()

    def _command(self, language, text):
        run = ["bash", "-ec", text] if language == "bash" else [sys.executable, "-c", text]
        return ["nsenter", f"--net=/proc/{self._network.pid}/ns/net", *run]

    def run(self, language, text, stdin="Tell me the capital of France.\n", **environment):
        """Runs a block and returns its stdout; AssertionError unless the block ends with 0. `stdin`: a question with a short answer. To
        a greeting the small model may say thousands of words."""
        done = subprocess.run(self._command(language, text), input=stdin, capture_output=True, text=True, timeout=BLOCK_S, cwd=ROOT,
                              env={**self.environment, **environment})
        if done.returncode != 0:
            raise AssertionError(f"exit {done.returncode}:\n{text}\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def serve(self, text):
        """Runs a block that ends with a server, and waits until the server is ready."""
        before = list(self._servers)
        log = tempfile.NamedTemporaryFile(prefix="somnus_block_", suffix=".log")
        server = subprocess.Popen(self._command("bash", text), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                                  env=self.environment, start_new_session=True)
        server.log = log
        self._servers.append(server)
        deadline = time.monotonic() + BLOCK_S
        while True:
            ready = subprocess.run(self._command("bash", "somnus status --ready"), env=self.environment, cwd=ROOT, check=False,
                                   stdin=subprocess.DEVNULL, capture_output=True)
            # A server that the block stops stays ready for a moment.
            if ready.returncode == 0 and all(one.poll() is not None for one in before):
                return
            if server.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"does not serve:\n{text}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self):
        texts = []
        for server in self._servers:
            with open(server.log.name, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return "\n".join(texts)
