"""The output of a command on a terminal of a given width."""
import os
import pty
import re
import termios

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
