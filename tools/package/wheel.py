"""A pip wheel, byte for byte the same from the same files (PEP 427, binary distribution format)."""
import base64
import hashlib
import os
import time
import zipfile


def write(folder, path, times):
    """Zips the folder's files in the order of their names, with RECORD at the end. times: SOURCE_DATE_EPOCH."""
    names = sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, files in os.walk(folder) for name in files)
    info = next(name for name in names if name.endswith(".dist-info/METADATA"))
    record_name = os.path.join(os.path.dirname(info), "RECORD")
    # Metadata last, as the format recommends.
    names.sort(key=lambda name: (name.startswith(os.path.dirname(info)), name))
    stamp = time.gmtime(max(times, 315532800))[:6]  # zip knows no time before 1980
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
            add(archive, name, data, os.access(os.path.join(folder, name), os.X_OK), stamp)
        add(archive, record_name, "".join([*rows, f"{record_name},,\n"]).encode(), False, stamp)


def add(archive, name, data, executable, stamp):
    entry = zipfile.ZipInfo(name, stamp)
    entry.create_system = 3  # Unix: the mode counts
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    archive.writestr(entry, data)


def metadata(version, readme):
    return f"""Metadata-Version: 2.1
Name: somnus
Version: {version}
Summary: Serves large language models, and lets them sleep: a server, its command line, and an offline engine
Requires-Python: >=3.9
Description-Content-Type: text/markdown
Provides-Extra: grpc
Requires-Dist: grpcio>=1.51; extra == "grpc"
Requires-Dist: protobuf>=4.21; extra == "grpc"
Provides-Extra: cuda
Requires-Dist: nvidia-cublas>=13,<14; extra == "cuda"
Requires-Dist: nvidia-nccl-cu13; extra == "cuda"
Provides-Extra: progress
Requires-Dist: tqdm; extra == "progress"

{readme}"""


def tag(glibc, machine):
    return f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"


def wheel_file(wheel_tag):
    return f"Wheel-Version: 1.0\nGenerator: tools/package.sh\nRoot-Is-Purelib: false\nTag: {wheel_tag}\n"
