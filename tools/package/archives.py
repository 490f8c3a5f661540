"""A tarball and a Debian package, byte for byte the same from the same files, whoever owns the files and from whatever checkout."""
import gzip
import os
import subprocess
import tarfile

# Runs as root behind the unpacking. The user is the one of systemd's units, and stays when the package is removed.
POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && ! getent passwd somnus >/dev/null; then
  useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin somnus
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
"""


def set_modes(folder):
    """Modes that do not tell the umask under which the checkout was made."""
    for where, _, files in os.walk(folder):
        os.chmod(where, 0o755)
        for path in (os.path.join(where, name) for name in files):
            if not os.path.islink(path):
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)


def tarball(folder, path, times):
    """The folder, with the folder's name as the first part of all names."""
    set_modes(folder)

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
    set_modes(folder)
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
Depends: {depends}, passwd
Section: net
Priority: optional
Description: serves large language models, and lets them sleep
 One coordinator and one worker for each device serve a model by OpenAI's HTTP
 API and by gRPC. The memory of a model that sleeps is given back to the machine.
"""
