"""logs.tar.xz: every log of the day, the middle of long ones left out."""
import io
import os
import tarfile

KEPT_BYTES = 512 << 10  # of a log's beginning and end, each


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
