"""`somnus chat` and `generate` as used by a person: on a terminal, with Ctrl-C, against a fake server."""
import contextlib
import http.server
import os
import re
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import unittest

from cluster.harness import SOMNUS
from cluster.harness.on_a_terminal import Terminal
from tools.fake_chat_server import HOLD, FakeServer

# Ctrl-U, which empties the line, and Ctrl-D.
END_OF_INPUT = "\x15\x04"


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.server = self._enter(FakeServer())
        self.state = self._enter(tempfile.TemporaryDirectory())
        self.environment = {**os.environ, "XDG_STATE_HOME": self.state, "TERM": "xterm", "LC_ALL": "C", "NO_COLOR": "1",
                            "SOMNUS_URL": f"http://127.0.0.1:{self.server.server_address[1]}"}

    def _enter(self, context):
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def chat(self, *flags, **changes):
        terminal = Terminal(["chat", *flags], {**self.environment, **changes})
        self.addCleanup(terminal.kill)
        terminal.read_until("> ")
        return terminal

    def ask(self, terminal, question):
        terminal.type(question + "\r")
        terminal.read_until(f"{question}!")
        terminal.read_until("> ")

    def questions(self):
        """The messages of the latest request, without roles."""
        return [message["content"] for message in self.server.asked[-1]["messages"]]

    def run_somnus(self, *arguments, **changes):
        return subprocess.run([SOMNUS, *arguments], env={**self.environment, **changes}, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60, check=False)

    @contextlib.contextmanager
    def started(self, *arguments):
        """The command on pipes, killed where the test ends before the command."""
        with subprocess.Popen([SOMNUS, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def test_ctrl_c_at_the_prompt_clears_the_line_and_keeps_the_conversation(self):
        terminal = self.chat()
        self.ask(terminal, "one")
        terminal.type("not this\x03")
        terminal.read_until("Ctrl-C again")
        terminal.read_until("> ")
        self.ask(terminal, "two")
        self.assertEqual(self.questions(), ["one", "one!", "two"])
        terminal.type("\x04")
        self.assertEqual(terminal.wait(again=END_OF_INPUT), 0)

    def test_ctrl_c_twice_leaves(self):
        terminal = self.chat()
        terminal.type("\x03")
        terminal.read_until("Ctrl-C again")
        terminal.read_until("> ")
        terminal.type("\x03")
        self.assertEqual(terminal.wait(again="\x03"), 0)

    def test_ctrl_c_stops_an_answer_and_keeps_what_there_is_of_it(self):
        terminal = self.chat()
        terminal.type(HOLD + "\r")
        terminal.read_until(f"{HOLD}!")
        terminal.type("\x03")
        terminal.read_until("[interrupted]")
        terminal.read_until("> ")
        self.ask(terminal, "two")
        self.assertEqual(self.questions(), [HOLD, f"{HOLD}!", "two"])

    def test_lines_can_be_edited_and_come_back_from_the_history(self):
        terminal = self.chat()
        terminal.type("abd\x02\x02X\x7fc\x05e\r")  # back twice, X, rubbed out, c, to the end, e
        terminal.read_until("acbde!")
        terminal.read_until("> ")
        terminal.type("\x04")
        self.assertEqual(terminal.wait(again=END_OF_INPUT), 0)
        path = os.path.join(self.state, "somnus", "history")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        again = self.chat()
        again.type("\x10\r")  # the line before, of the process before
        again.read_until("acbde!")

    def test_the_prompt_alone_is_green(self):
        terminal = self.chat(NO_COLOR="")
        self.ask(terminal, "one")
        colours = re.findall(r"\x1b\[[0-9;]*m", terminal.raw)
        self.assertIn("\x1b[32m", colours)
        self.assertEqual(colours[-1], "\x1b[0m")
        for after in terminal.raw.split("\x1b[32m")[1:]:
            self.assertTrue(after.startswith(">\x1b[0m "), after)

    def test_a_pasted_text_is_one_question(self):
        terminal = self.chat()
        self.assertIn("\x1b[?2004h", terminal.raw)
        terminal.type("see: \x1b[200~one\rtwo\r\tthree\x07\r\x1b[201~ \r")
        terminal.read_until("three!")
        terminal.read_until("> ")
        self.assertEqual(self.questions(), ["see: one\ntwo\n\tthree"])
        self.ask(terminal, "next")
        terminal.type("\x04")
        self.assertEqual(terminal.wait(again=END_OF_INPUT), 0)
        self.assertEqual(len(self.server.asked), 2)

    def test_a_paste_that_is_too_long_is_left_out_and_said(self):
        terminal = self.chat()
        feeder = threading.Thread(target=terminal.type_all, args=("\x1b[200~" + "x" * ((128 << 10) + 10) + "\x1b[201~",))
        feeder.start()
        terminal.read_until("a file can be piped in: somnus chat < FILE)")
        feeder.join()
        self.ask(terminal, "next")
        self.assertEqual(self.questions(), ["next"])

    def test_a_question_of_several_lines(self):
        terminal = self.chat()
        terminal.type("one \\\r")
        terminal.read_until(". ")
        terminal.type("two\\\r")
        terminal.read_until(". ")
        self.ask(terminal, "three")
        self.assertEqual(self.questions(), ["one \ntwo\nthree"])
        terminal.type('"""\r')
        terminal.read_until(". ")
        terminal.type("  four\r")
        terminal.read_until(". ")
        terminal.type('five"""\r')
        terminal.read_until("five!")
        self.assertEqual(self.questions()[-1], "  four\nfive")

    def test_a_question_that_has_begun_is_dropped_by_ctrl_c_and_ended_by_ctrl_d(self):
        terminal = self.chat()
        terminal.type('"""never\r')
        terminal.read_until(". ")
        terminal.type("\x03")
        terminal.read_until("Ctrl-C again")
        terminal.read_until("> ")
        terminal.type('"""one\r')
        terminal.read_until(". ")
        terminal.type("\x04")
        terminal.read_until("one!", again=END_OF_INPUT)
        self.assertEqual(self.questions(), ["one"])

    def test_a_full_context_forgets_the_oldest_exchanges_and_says_so(self):
        self.server.context = 16  # of which an answer may have four
        terminal = self.chat("--system", "short")
        for question in ("a b c d", "e f"):
            self.ask(terminal, question)
        terminal.type("g h\r")
        self.assertIn("(the context of 16 tokens is full: 1 exchange at the beginning is forgotten)", terminal.read_until("g h!"))
        self.assertEqual(self.questions(), ["short", "e f", "e f!", "g h"])
        terminal.read_until("> ")
        terminal.type(" ".join("x" * 14) + "\r")
        self.assertIn("2 exchanges at the beginning are forgotten", terminal.read_until("x!"))
        self.assertEqual(len(self.questions()), 2)

    def test_a_pipe_that_is_closed_ends_a_command_without_a_word(self):
        for arguments in (("--help",), ("chat", "--help"), ("generate", "a long answer"), ("doctor", "--no-measure")):
            with self.subTest(arguments=arguments):
                read, write = os.pipe()
                os.close(read)
                done = subprocess.run([SOMNUS, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=write,
                                      stderr=subprocess.PIPE, text=True, timeout=60, check=False)
                os.close(write)
                self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""))

    def test_bytes_that_are_no_text_are_sent_as_marks(self):
        for arguments in (("generate",), ("prefixes", "pin")):
            with self.subTest(arguments=arguments):
                subprocess.run([SOMNUS, *arguments], env=self.environment, input=b"a\xffb", capture_output=True, timeout=60, check=False)
                self.assertEqual(self.server.asked[-1]["prompt"], "a\ufffdb")

    def test_other_letters_than_ascii(self):
        terminal = self.chat()
        self.ask(terminal, "grüße 你好")
        self.assertEqual(self.questions(), ["grüße 你好"])

    def test_an_unknown_command_is_one_line_with_the_nearest(self):
        terminal = self.chat()
        terminal.type("/rest\r")
        self.assertIn("unknown command /rest: did you mean /reset?", terminal.read_until("> "))
        terminal.type("/systems x\r")
        self.assertIn("unknown command /systems: did you mean /system?", terminal.read_until("> "))
        self.assertEqual(self.server.asked, [])

    def test_ctrl_c_ends_a_single_question_with_130(self):
        for command in ("chat", "generate"):
            with self.subTest(command=command):
                with self.started(command, HOLD) as process:
                    self.assertEqual(process.stdout.read(len(HOLD) + 1), f"{HOLD}!")
                    process.send_signal(signal.SIGINT)
                    _, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (130, "interrupted\n"))

    def test_a_server_that_does_not_serve_is_not_waited_for(self):
        self.server.health = 503
        done = self.run_somnus("chat", "hello")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "error: the server does not serve now (HTTP 503)\n")
        self.assertEqual(self.server.asked, [])

    def test_silence_is_explained_when_the_server_has_gone_to_sleep(self):
        with self.started("generate", HOLD) as process:
            self.assertEqual(process.stdout.read(len(HOLD) + 1), f"{HOLD}!")
            self.server.health = 503
            self.assertEqual(process.stderr.readline(), "(the server does not serve now (HTTP 503))\n")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

    def test_what_is_no_somnus_server_is_called_so(self):
        nobody = socket.socket()  # bound, and never listens
        nobody.bind(("127.0.0.1", 0))
        self.addCleanup(nobody.close)
        port = nobody.getsockname()[1]

        class Plain(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

        plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain)
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        self.addCleanup(plain.server_close)
        self.addCleanup(plain.shutdown)
        for url, code, words in (
                (f"http://127.0.0.1:{port}", 3, f"cannot connect to 127.0.0.1:{port}: Connection refused"),
                (f"http://127.0.0.1:{plain.server_address[1]}", 3, "is not a Somnus server"),
                (f"https://127.0.0.1:{port}", 3, f"cannot connect to 127.0.0.1:{port}: Connection refused"),
                (f"https://127.0.0.1:{self.talker()}", 3, "does not speak TLS"), ("http://127.0.0.1:x", 2, "'http://127.0.0.1:x' is not an address")):
            with self.subTest(url=url):
                for command in ("status", "sleep", "wake-up", "roll", "stop"):
                    done = self.run_somnus(command, SOMNUS_URL=url)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertIn(words, done.stderr)
                    self.assertEqual(done.stderr.count("\n"), 1)

    def talker(self):
        """A port that sends HTTP to every client."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def talk():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with sock:
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                    sock.recv(65536)
        threading.Thread(target=talk, daemon=True).start()
        return listener.getsockname()[1]

    def test_an_ipv6_address_is_in_brackets_in_the_host_header(self):
        try:
            server = self._enter(FakeServer("::1"))
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        address = f"[::1]:{server.server_address[1]}"
        self.assertEqual(self.run_somnus("generate", "--url", f"http://{address}", "one").stdout, "one!\n")
        self.assertEqual(server.host, address)

    def test_commands_of_other_programs_lead_to_ours(self):
        for command, words in (("pull", "somnus models add"), ("ps", "somnus models"), ("lst", "did you mean list?")):
            done = self.run_somnus(command, "x")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(words, done.stderr)

    def test_version(self):
        for arguments in (("--version",), ("chat", "--version"), ("status", "--version")):
            self.assertRegex(self.run_somnus(*arguments).stdout, r"^somnus \d+\.\d+\.\d+\n$")
