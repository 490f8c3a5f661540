"""The logs of a day, and logs.tar.xz, which holds every log, the middle of long ones left out."""
import io
import os
import sys
import tarfile

KEPT_BYTES = 512 << 10  # of a log's beginning and end, each


class Log:
    """A new log, a context manager. On a full disk the item goes on, and the log lacks what the disk did not take."""

    def __init__(self, path):
        try:
            self._file = open(path, "wb", buffering=0)
        except OSError as error:
            print(f"{path}: {error}", file=sys.stderr)
            self._file = open(os.devnull, "wb", buffering=0)

    def write(self, text):
        try:
            self._file.write(text.encode(errors="replace"))
        except OSError:
            pass

    def fileno(self):
        """For a process that writes into the log."""
        return self._file.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def text(path):
    """The text of a log; none when a full disk had no room for the log."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def shortened(path):
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * KEPT_BYTES:
            return file.read()
        first = file.read(KEPT_BYTES)
        file.seek(-KEPT_BYTES, os.SEEK_END)
        return first + b"\n... %d bytes ...\n" % (size - 2 * KEPT_BYTES) + file.read()


def pack(folder):
    """The archive's bytes: some MiB at most, since logs are shortened."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=1) as archive:
        for name in sorted(os.listdir(folder)):
            contents = shortened(os.path.join(folder, name))
            info = tarfile.TarInfo(f"logs/{name}")
            info.size, info.mtime = len(contents), int(os.path.getmtime(os.path.join(folder, name)))
            archive.addfile(info, io.BytesIO(contents))
    return packed.getvalue()
