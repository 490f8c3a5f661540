"""Commands, each on a new terminal."""
import codecs
import os
import pty
import re
import select
import signal
import termios
import time

from cluster.harness import SOMNUS

ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def output_of(arguments, environment, columns):
    """The command's output without escape sequences; AssertionError unless the command ends with 0."""
    pid, fd = pty.fork()
    if pid == 0:
        try:
            termios.tcsetwinsize(0, (24, columns))
            os.execve(SOMNUS, [SOMNUS, *arguments], {**environment, "TERM": "xterm"})
        finally:
            os._exit(127)
    pieces = []
    while True:
        try:
            piece = os.read(fd, 4096)
        except OSError:  # the command has closed the terminal
            break
        if not piece:
            break
        pieces.append(piece)
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    text = ESCAPE.sub("", b"".join(pieces).decode()).replace("\r\n", "\n")
    if os.waitstatus_to_exitcode(status) != 0:
        raise AssertionError(text)
    return text


class Terminal:
    """A command on a new terminal."""

    def __init__(self, arguments, environment, rows=24, columns=80, program=SOMNUS):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                termios.tcsetwinsize(0, (rows, columns))
                os.execve(program, [program, *arguments], environment)
            finally:
                os._exit(127)
        self.seen = self.raw = ""
        self.code = None
        self.decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character

    def type(self, text):
        os.write(self.fd, text.encode())

    def type_all(self, text):
        data = text.encode()
        while data:
            data = data[os.write(self.fd, data[:1024]):]

    def read_until(self, words, again=""):
        """The output since the last call, up to and with `words`, without escape sequences. Types `again` while nothing
        comes, as wait does."""
        while words not in self.seen:
            for _ in range(120):
                if self.readable(0.5):
                    break
                self.type(again)
            try:
                piece = os.read(self.fd, 4096) if self.readable(0) else b""
            except OSError:
                piece = b""
            if not piece:
                raise AssertionError(f"{words!r} never came; there was {self.seen!r}")
            text = self.decoder.decode(piece)
            self.raw += text
            self.seen = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", self.seen + text)
        text, _, self.seen = self.seen.partition(words)
        return text + words

    def readable(self, seconds):
        return bool(select.select([self.fd], [], [], seconds)[0])

    def wait(self, again=""):
        """The exit code once the command has ended. `again` is typed every half second until then: a key that is typed
        while the prompt is being set up is lost, or becomes a part of the line."""
        deadline = time.monotonic() + 60
        try:
            while time.monotonic() < deadline:
                if not self.readable(0.5):
                    self.type(again)
                elif not os.read(self.fd, 4096):
                    break
            else:
                os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def kill(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
