"""The terminal: names of models, a server for one answer, the screen of `somnus top`, the story of a request, completions."""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from cluster.harness import SOMNUS, Cluster, expected, free_ports, tiny, wait_until
from cluster.harness.on_a_terminal import Terminal
from cluster.poison_test import FaultyCluster

MODEL = "llama-uneven"
CASE = next(case for case in expected(MODEL) if case["name"] == "prompt-17")


def run(*arguments, code=0, **changes):
    done = subprocess.run([SOMNUS, *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          env={**os.environ, **changes})
    if done.returncode != code:
        raise AssertionError(f"somnus {' '.join(arguments)}: exit {done.returncode}: {done.stderr}{done.stdout}")
    return done


class Names(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = {"SOMNUS_MODELS": folder.name}

    def test_a_name_is_as_good_as_a_path(self):
        self.assertIn("somnus models add", run("list", **self.folder).stdout)
        run("models", "add", tiny(MODEL), "--name", "uneven", **self.folder)
        self.assertEqual(run("list", "--names", **self.folder).stdout, "uneven\n")
        listed, = json.loads(run("list", "--json", **self.folder).stdout)["models"]
        self.assertEqual((listed["path"], listed["exists"]), (os.path.realpath(tiny(MODEL)), True))
        self.assertIn("llama", run("doctor", "uneven", "--no-measure", **self.folder).stdout.lower())
        # The answer of a command's own server equals any server's, and nothing is left of that server.
        said = run("run", "uneven", "--raw", "--max-tokens=8", "--temperature=0", "a b c", "--", "--dtype=float32", **self.folder)
        self.assertEqual(run("run", tiny(MODEL), "--raw", "--max-tokens=8", "--temperature=0", "a b c", "--", "--dtype=float32",
                             "--host=0.0.0.0").stdout, said.stdout)
        self.assertGreater(len(said.stdout), 1)
        self.assertIn("did you mean uneven?", run("run", "unevn", "x", code=1, **self.folder).stderr)
        run("models", "remove", "uneven", **self.folder)
        self.assertEqual(run("list", "--names", **self.folder).stdout, "")
        self.assertTrue(os.path.exists(tiny(MODEL)))

    def test_odd_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            words, escape, none = (shutil.copytree(tiny(MODEL), os.path.join(folder, name))
                                   for name in ("_two words", "\x1b[2Jred", "\u65e5\u672c"))
            self.assertIn("two-words stands for", run("models", "add", words, **self.folder).stdout)
            self.assertIn("--name=NAME", run("models", "add", none, code=2, **self.folder).stderr)
            run("models", "add", none, "--name=other", **self.folder)
            run("models", "add", escape, "--name=red", **self.folder)
            terminal = Terminal(["list"], {**os.environ, **self.folder, "TERM": "xterm"}, columns=200)
            self.addCleanup(terminal.kill)
            terminal.read_until("[2Jred")
            self.assertNotIn("\x1b[2J", terminal.raw)

    def test_what_is_no_model_gets_no_name(self):
        run("models", "add", self.folder["SOMNUS_MODELS"], "--name", "x", code=1, **self.folder)
        self.assertEqual(run("list", "--names", **self.folder).stdout, "")

    def test_a_server_that_cannot_start_says_why(self):
        said = run("run", tiny(MODEL), "x", "--", "--max-num-seqs=0", code=1).stderr
        self.assertIn("--max-num-seqs", said)
        self.assertIn("--ssl", run("run", tiny(MODEL), "x", "--", "--ssl-certfile=x", code=2).stderr)

    def test_one_port_moves_all_and_a_second_server_starts(self):
        run("models", "add", tiny(MODEL), "--name", "uneven", **self.folder)
        port = free_run_of_four()
        with subprocess.Popen([SOMNUS, "serve", "uneven", "--dtype=float32", f"--port={port}", "--served-model-name", "first", "second"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **self.folder}) as server:
            try:
                lines = []
                for line in server.stderr:
                    lines.append(line)
                    if "somnus chat" in line:
                        break
                ready = next((line for line in lines if "serving first on" in line), "".join(lines))
                self.assertEqual([int(one) for one in re.findall(r"127\.0\.0\.1:(\d+)", ready)], [port, port + 1, port + 2, port + 3])
                url = f"http://127.0.0.1:{port}"
                self.assertTrue(any(line.endswith(f"{url}/v1\n") for line in lines))
                pages = next((line for line in lines if "pages:" in line), "".join(lines))
                self.assertIn(f"{url}/ to chat, http://127.0.0.1:{port + 1}/ to operate", pages)
                self.assertTrue(lines[-1].endswith(f"somnus chat --url={url}\n"), lines[-1])
                for name in ("first", "second"):
                    self.assertGreater(len(run("generate", "--url", url, "--model", name, "--max-tokens=4", "a b").stdout), 1)
            finally:
                server.send_signal(signal.SIGTERM)
                server.stderr.read()
            self.assertEqual(server.wait(60), 0)


def free_run_of_four():
    """A port that three free ports follow."""
    for _ in range(100):
        port, = free_ports(1)
        if port + 3 < 65536 and all(is_free(one) for one in range(port, port + 4)):
            return port
    raise AssertionError("no four free ports in a row")


def is_free(port):
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Screen(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(tiny(MODEL), "--dtype=float32", workers=2)
        cls.addClassCleanup(cls.cluster.__exit__)

    def top(self, **size):
        terminal = Terminal(["top", "--interval=200ms"], {**self.cluster.cli_environment(), "TERM": "xterm"}, **size)
        self.addCleanup(terminal.kill)
        return terminal

    def hold(self, *names):
        """Requests of these users, which a pause keeps open; a future of each one's answer."""
        pool = concurrent.futures.ThreadPoolExecutor(len(names))
        self.addCleanup(pool.shutdown)
        self.cluster.cli("pause")
        self.addCleanup(self.cluster.cli, "resume")
        futures = [pool.submit(self.cluster.complete, CASE["prompt"], request_id=name, user=name, max_tokens=4) for name in names]
        wait_until(lambda: len(self.stories("")["data"]) == len(names), 60, "the requests")
        return futures

    def stories(self, query):
        return self.cluster.request("GET", f"/requests{query}", port=self.cluster.admin_port).json

    def test_a_request_is_ended_and_a_model_put_to_sleep(self):
        ended, = self.hold("ann")
        top = self.top(rows=30, columns=60)
        top.read_until("cmpl-ann")
        top.type("x")
        top.read_until("(y/n)")
        top.type("n")
        top.read_until("q ends")
        self.assertEqual(self.stories("")["counts"]["waiting"], 1, "no is no")
        top.type("x")
        top.read_until("(y/n)")
        top.type("y")
        top.read_until("is ended")
        self.assertEqual(ended.result(60)["choices"][0]["finish_reason"], "abort")
        for key, question, state in (("\tp", "resume test-model?", "AWAKE"), ("z", "put to sleep (level 1) test-model?", "ASLEEP"),
                                     ("z", "wake test-model?", "AWAKE")):
            top.type(key)
            top.read_until(question)
            top.type("y")
            top.read_until("done")
            wait_until(lambda state=state: self.cluster.status()["state"] == f"ENGINE_STATE_{state}", 60, state)
            top.read_until(state.lower())
        top.type("q")
        self.assertEqual(top.wait(), 0)

    def test_filter_sort_and_explanation(self):
        self.hold("ann", "bob")
        top = self.top(rows=30, columns=110)
        top.read_until("users (by open):")
        top.type("\x1c/bob\r")  # Ctrl-\ is no key, and does not end a screen that nobody would restore
        top.read_until("with 'bob'")
        top.read_until("cmpl-bob")
        # The rows of the last answer stay until the server has answered with the filter.
        frames = (top.read_until("q ends") for _ in range(20))
        self.assertTrue(any("cmpl-ann" not in frame for frame in frames))
        top.type("\r")
        top.read_until("not scheduled yet")
        top.type(" s")
        top.read_until("by tokens")
        top.type("/\x1b\t\ts")
        top.read_until("users (by wait):")
        top.type("\x1b[B\r")
        top.read_until("with 'bob'")
        top.type("q")
        self.assertEqual(top.wait(), 0)

    def test_what_is_longer_than_the_screen_is_scrolled(self):
        top = self.top(rows=10, columns=80)
        top.read_until("q ends")
        top.type("?")
        top.read_until("lines 1 to 9 of")
        top.type("\x1b[B")
        top.read_until("lines 2 to 10 of")
        top.type("x")
        top.read_until("q ends")
        top.type("q")
        self.assertEqual(top.wait(), 0)

    def test_without_a_screen_it_is_text(self):
        self.hold("ann")
        text = self.cluster.cli("top", "--once").stdout
        self.assertIn("cmpl-ann", text)
        self.assertNotIn("\x1b", text)

    def test_a_server_that_is_gone_does_not_hold_the_screen(self):
        with Cluster(tiny(MODEL), "--dtype=float32", workers=1) as other:
            top = Terminal(["top", "--interval=100ms"], {**other.cli_environment(), "TERM": "xterm"})
            self.addCleanup(top.kill)
            top.read_until("q ends")
            other.stop()
            top.read_until("cannot connect")
            top.type("q")
            self.assertEqual(top.wait(), 0)

    def test_requests_that_have_ended_are_logged(self):
        self.cluster.complete(CASE["prompt"], request_id="logged", max_tokens=4)
        self.assertRegex(self.cluster.cli("logs", "--limit=5").stdout, r"(?m)^\d\d:\d\d:\d\d\.\d+  cmpl-logged  test-model  length  \d+\+4 tokens")
        story = self.cluster.cli("explain", "cmpl-logged").stdout
        self.assertEqual(re.findall(r"(?m)^  \S+  \+ *\S+ s  ([a-z ]+)", story), ["queued", "scheduled", "first token", "ended"])
        # A step is on its way by the time that the last token is known.
        self.assertIn(int(re.search(r"computed in (\d+) steps", story)[1]), (4, 5), story)
        unknown = self.cluster.cli("explain", "cmpl-nobody", check=False)
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("--request-history", unknown.stderr)

    def test_a_bench_finds_the_server_as_all_commands_do(self):
        report = self.cluster.cli("bench", "--num-requests=3", "--input-len=8", "--output-len=4", "--vocab-low=1", "--vocab-high=200",
                                  "--no-probe").stdout
        self.assertIn("TTFT", report)


class Failures(unittest.TestCase):
    def test_a_failure_of_the_workers_is_in_the_story(self):
        poison = [201, 202, 203]
        with FaultyCluster(f"abort@0 {','.join(map(str, poison))}") as cluster:
            body = {"model": cluster.name, "prompt": poison, "max_tokens": 4}
            self.assertNotEqual(cluster.request("POST", "/v1/completions", body, {"X-Request-Id": "struck"}).status, 200)
            self.assertIn("request cmpl-struck ended: ", cluster.log())
            text = cluster.cli("explain", "cmpl-struck").stdout
        for words in ("scheduled", "interrupted: ", "preempted: failure", "resumed", "ended: error: "):
            self.assertIn(words, text)


class Errors(unittest.TestCase):
    def test_an_error_moves_no_cursor(self):
        logs = Terminal(["logs", "\x1b[2Jx"], {**os.environ, "TERM": "dumb"})
        self.addCleanup(logs.kill)
        logs.read_until("unexpected argument '\\x1b[2Jx'")
        self.assertEqual(logs.wait(), 2)

    def test_output_that_cannot_be_written_is_an_error(self):
        for command in (["--help"], ["list"], ["completions", "bash"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([SOMNUS, *command], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
                                      check=False)
            self.assertEqual((done.returncode, done.stderr), (1, "error: standard output cannot be written\n"), command)


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bash = run("completions", "bash").stdout

    @staticmethod
    def environment():
        return {**os.environ, "PATH": f"{os.path.dirname(SOMNUS)}:{os.environ['PATH']}"}

    def complete(self, *words):
        done = subprocess.run(["bash", "-c", f'{self.bash}\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n_somnus\nprintf "%s\\n" "${{COMPREPLY[@]}}"', "-",
                               "somnus", *words], capture_output=True, text=True, check=True, env=self.environment())
        return done.stdout.split()

    def test_commands_flags_and_values(self):
        self.assertEqual(self.complete("ex"), ["explain"])
        self.assertEqual(self.complete("serve", "--max-num-s"), ["--max-num-seqs"])
        self.assertEqual(self.complete("serve", "--load-format", "=", "du"), ["dummy"])
        self.assertEqual(self.complete("sleep", "--mode", "w"), ["wait"])
        self.assertEqual(self.complete("bench", "--num-r"), ["--num-requests"])

    def test_every_command_is_in_all_three(self):
        names = [line.split("\t")[0] for line in run("--help=commands").stdout.splitlines()]
        self.assertGreater(len(names), 20)
        for script in (self.bash, run("completions", "zsh").stdout, run("completions", "fish").stdout):
            for name in names:
                self.assertRegex(script, rf"\b{name}\b")
            self.assertIn("max-num-seqs", script)

    def written(self, shell, name):
        """The script of a shell, in a file of that name."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(run("completions", shell).stdout)
        return path

    @unittest.skipUnless(shutil.which("fish"), "fish is not here (tools/setup.sh tests installs it for root)")
    def test_fish_completes(self):
        path = self.written("fish", "somnus.fish")
        for line, wanted in (("somnus sl", "sleep"), ("somnus serve --max-num-s", "--max-num-seqs"),
                             ("somnus sleep --mode w", "wait"), ("somnus sleep --mode=w", "--mode=wait"),
                             ("somnus completions f", "fish")):
            done = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]; complete --do-complete $argv[2]', path, line],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env=self.environment())
            self.assertEqual(([one.split("\t")[0] for one in done.stdout.splitlines()], done.stderr), ([wanted], ""), line)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here (tools/setup.sh tests installs it for root)")
    def test_zsh_completes(self):
        """As the Debian package installs the script, and as ~/.zshrc sources it. A function stands in for the command, and
        prints the command's arguments."""
        path = self.written("zsh", "_somnus")
        folder = os.path.dirname(path)
        for setup in (f"fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D",
                      f"autoload -Uz compinit; compinit -u -D; source {path}"):
            zsh = Terminal(["-f", "-i"], {"TERM": "xterm", "PATH": os.environ["PATH"], "HOME": folder}, columns=200,
                           program=shutil.which("zsh"))
            self.addCleanup(zsh.kill)
            zsh.type(f"{setup}; somnus() {{ print -r -- \"<$*>\" }}; print ready$((1 + 1))\n")
            zsh.read_until("ready2")
            for line, wanted in (("sl\t", "sleep"), ("serve --max-num-s\t", "serve --max-num-seqs"),
                                 ("sleep --mode w\t", "sleep --mode wait"), ("sleep --mode=w\t", "sleep --mode=wait"),
                                 ("completions f\t", "completions fish")):
                zsh.type(f"somnus {line}\n")
                zsh.read_until(f"<{wanted}>")
            zsh.type("exit\n")
            self.assertEqual(zsh.wait(), 0)
