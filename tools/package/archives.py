"""A tarball and a Debian package, byte for byte the same from the same files."""
import gzip
import os
import subprocess
import tarfile


def tarball(folder, path, times):
    """The folder, with the folder's name as the first part of all names."""
    def plain(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = times
        return entry

    with open(path, "wb") as file, gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=times) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, os.path.basename(folder), filter=plain)  # sorted by name, as tarfile does


def debian_package(folder, path, times):
    """Of a folder that has DEBIAN/control."""
    for where, folders, files in os.walk(folder):
        for name in [*folders, *files, "."]:
            os.utime(os.path.join(where, name), (times, times), follow_symlinks=False)
    subprocess.run(["dpkg-deb", "-Zgzip", "--root-owner-group", "--build", folder, path], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(times)})


def debian_control(version, machine, depends, size_kib):
    return f"""Package: somnus
Version: {version}
Architecture: {machine}
Maintainer: The Somnus developers <somnus@localhost>
Installed-Size: {size_kib}
Depends: {depends}
Section: net
Priority: optional
Description: serves large language models, and lets them sleep
 One coordinator and one worker for each device serve a model by OpenAI's HTTP
 API and by gRPC. The memory of a model that sleeps is given back to the machine.
"""
