"""One thread of a process that stands still while all others run, as in a deadlock: a tracer (ptrace) holds it."""
import ctypes
import os

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # waitpid for a thread that is no child

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, thread):
    if LIBC.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def threads(pid):
    """{name: [thread id]} of a process."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8") as file:
                found.setdefault(file.read().rstrip("\n"), []).append(int(task))
        except OSError:
            pass  # it has ended meanwhile
    return found


class StoppedThread:
    """with StoppedThread(pid, name): the thread does not run. To be used on one thread of the test."""

    def __init__(self, pid, name):
        self.thread = min(threads(pid)[name])  # threads that it starts have its name, too

    def __enter__(self):
        ptrace(PTRACE_SEIZE, self.thread)
        ptrace(PTRACE_INTERRUPT, self.thread)
        os.waitpid(self.thread, WALL)
        return self

    def __exit__(self, *_):
        ptrace(PTRACE_DETACH, self.thread)


def can_stop():
    """Whether this machine lets a process trace its child, as a container may not."""
    child = os.fork()
    if child == 0:
        while True:
            os.read(os.pipe()[0], 1)
    try:
        ptrace(PTRACE_SEIZE, child)
        return True
    except OSError:
        return False
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
