"""A file system that stops to answer on command, as a network's file system may: FUSE, spoken by a separate process. The system
ends a process that waits for a request that nobody has taken, as it does within a read of NFS, and no other that waits."""
import ctypes
import errno
import multiprocessing
import os
import select
import signal
import stat
import struct
import tempfile
import unittest

HEADER = struct.Struct("<IIQQIIII")
REPLY = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
READ = struct.Struct("<QQI")
LOOKUP, FORGET, GETATTR, SETATTR, UNLINK, OPEN, READ_OP, WRITE, STATFS, RELEASE, FSYNC = 1, 2, 3, 4, 10, 14, 15, 16, 17, 18, 20
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, CREATE, INTERRUPT, BATCH_FORGET = 25, 26, 27, 28, 29, 35, 36, 42
ROOT_NODE = 1
SIZE_IS_GIVEN = 1 << 3  # of a SETATTR
LONGEST_REQUEST = 1 << 20
MAX_WRITE = 1 << 17
NO_FLUSH = 1 << 5  # of an open file: closing it asks nothing, as with a file of NFS that was read
VALID_S = 0  # the kernel asks for names and attributes each time
MNT_FORCE, MNT_DETACH = 1, 2


def waits_for_files(pid):
    """Whether a thread of the process waits for a file system of FUSE."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/wchan", encoding="ascii") as file:
            if file.read() == "request_wait_answer":
                return True
    return False


def mounts_work():
    return os.geteuid() == 0 and os.path.exists("/dev/fuse")


class HangingFiles:
    """A context manager: `path` is a mount point with copies of a folder's files. hang() stops all answers about files' bytes (or
    about the bytes of the file with the name `only`), go_on() gives them. freeze() leaves all requests where they are, also those
    about names, and thaw() takes them. Leaving the context ends every reader that still waits, with an error; leaving the context
    again does nothing."""

    def __init__(self, folder=None, only=None):
        if not mounts_work():
            raise unittest.SkipTest("needs root and /dev/fuse")
        self._has_ended = False
        self._temporary = tempfile.TemporaryDirectory()
        self.path = self._temporary.name
        self._hangs, self._waiting = multiprocessing.Event(), multiprocessing.Value("i", 0)
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},allow_other"
        if self._libc.mount(b"hanging", os.fsencode(self.path), b"fuse", 0, options.encode()) != 0:
            os.close(self._device)
            self._temporary.cleanup()
            raise unittest.SkipTest(f"may not mount: {os.strerror(ctypes.get_errno())}")
        files = {} if folder is None else {name: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
        parent = os.getpid()
        self._process = multiprocessing.get_context("fork").Process(
            target=lambda: Files(self._device, files, self._hangs, self._waiting, only).serve(parent), daemon=True)
        self._process.start()
        os.close(self._device)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._has_ended:
            return
        self._has_ended = True
        self._process.kill()  # the kernel then ends all that wait with an error
        self._process.join()
        self._libc.umount2(os.fsencode(self.path), MNT_FORCE | MNT_DETACH)
        self._temporary.cleanup()

    def hang(self):
        self._hangs.set()

    def go_on(self):
        self._hangs.clear()

    def freeze(self):
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def num_waiting(self):
        """Reads and writes that wait for go_on()."""
        return self._waiting.value


class Node:
    def __init__(self, source):
        self.file = tempfile.TemporaryFile()
        if source is not None:
            with open(source, "rb") as file:
                self.file.write(file.read())
            self.file.flush()


class Files:
    """The file system itself: a folder without folders."""

    def __init__(self, device, files, hangs, waiting, only=None):
        self.device, self.hangs, self.waiting, self.only = device, hangs, waiting, only
        self.nodes, self.names = {}, {}
        for name, source in files.items():
            if os.path.isfile(source):
                self.add(name, source)
        self.held = []

    def add(self, name, source=None):
        number = len(self.nodes) + ROOT_NODE + 1
        self.nodes[number] = Node(source)
        self.names[name] = number
        return number

    def serve(self, parent):
        """Until the file system is unmounted or the parent has ended, which then cannot end this process any more."""
        while os.getppid() == parent:
            if select.select([self.device], [], [], 0.05)[0]:
                try:
                    request = os.read(self.device, LONGEST_REQUEST)
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    continue
                self.take(request)
            if self.held and not self.hangs.is_set():
                held, self.held = self.held, []
                for request in held:
                    self.answer(request)
            self.waiting.value = len(self.held)

    def take(self, request):
        _, opcode, _, node, *_ = HEADER.unpack_from(request)
        meant = self.only is None or self.names.get(self.only) == node
        if opcode in (READ_OP, WRITE, FSYNC) and meant and self.hangs.is_set():
            self.held.append(request)
        else:
            self.answer(request)

    def answer(self, request):
        _, opcode, unique, node, *_ = HEADER.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        error, body = 0, b""
        try:
            body = self.reply(opcode, node, request[HEADER.size:])
        except OSError as failed:
            error = failed.errno
        try:
            os.write(self.device, REPLY.pack(REPLY.size + len(body), -error, unique) + body)
        except OSError:
            pass  # the asking process has ended

    def reply(self, opcode, node, body):
        if opcode == INIT:
            return struct.pack("<IIIIHHIIHHIIIIIIII", 7, 31, MAX_WRITE, 0, 16, 12, MAX_WRITE, 1, 0, 0, *[0] * 8)
        if opcode == LOOKUP:
            return self.entry(self.named(body))
        if opcode == GETATTR:
            return struct.pack("<QII", VALID_S, 0, 0) + self.attributes(node)
        if opcode == SETATTR:
            valid, _, _, size = struct.unpack_from("<IIQQ", body)
            if valid & SIZE_IS_GIVEN:
                os.ftruncate(self.nodes[node].file.fileno(), size)
            return struct.pack("<QII", VALID_S, 0, 0) + self.attributes(node)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", node, NO_FLUSH if opcode == OPEN else 0, 0)
        if opcode == CREATE:
            number = self.add(body[16:].split(b"\0", 1)[0].decode())
            return self.entry(number) + struct.pack("<QII", number, 0, 0)
        if opcode == READ_OP:
            _, offset, size = READ.unpack_from(body)
            return os.pread(self.nodes[node].file.fileno(), size, offset)
        if opcode == WRITE:
            _, offset, size = READ.unpack_from(body)
            return struct.pack("<II", os.pwrite(self.nodes[node].file.fileno(), body[40:40 + size], offset), 0)
        if opcode == READDIR:
            return self.listing(READ.unpack_from(body)[1])
        if opcode == UNLINK:
            del self.names[body.split(b"\0", 1)[0].decode()]
            return b""
        if opcode in (RELEASE, RELEASEDIR, FLUSH, FSYNC):
            return b""
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII6I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *[0] * 6)
        raise OSError(errno.ENOSYS, "")

    def named(self, body):
        name = body.split(b"\0", 1)[0].decode()
        if name not in self.names:
            raise OSError(errno.ENOENT, "")
        return self.names[name]

    def entry(self, number):
        return ENTRY.pack(number, 0, VALID_S, VALID_S, 0, 0) + self.attributes(number)

    def attributes(self, number):
        size, mode = 0, stat.S_IFDIR | 0o755
        if number != ROOT_NODE:
            size, mode = os.fstat(self.nodes[number].file.fileno()).st_size, stat.S_IFREG | 0o644
        return ATTRIBUTES.pack(number, size, (size + 511) // 512, 1, 1, 1, 0, 0, 0, mode, 1, os.geteuid(), os.getegid(), 0, 4096, 0)

    def listing(self, offset):
        text = b""
        for at, (name, number) in enumerate(sorted(self.names.items())):
            if at < offset:
                continue
            raw = name.encode()
            entry = struct.pack("<QQII", number, at + 1, len(raw), stat.S_IFREG >> 12) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(text) + len(entry) > 4096:
                break
            text += entry
        return text
