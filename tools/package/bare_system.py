"""A bare Debian without a network, into which an artifact of tools/package.sh is installed as a new user would install it.

The system is debootstrap's smallest with Python, made once for each release in the cache. What happens in it is written over it
(overlayfs) into memory, and is gone afterwards."""
import os
import re
import shutil
import subprocess
import tempfile

CACHE = os.environ.get("SOMNUS_CACHE", os.path.expanduser("~/.cache/somnus"))
NEEDED = ("debootstrap", "unshare", "ip", "mount", "chroot")
# By the end of the artifact's name: the steps after which `somnus` can be called, as names and commands of a shell. The tarball
# goes to a folder that nobody expects.
STEPS = {
    ".whl": (("python3 -m venv", "python3 -m venv /tmp/venv"),
             ("pip install", '/tmp/venv/bin/pip install -q --no-index --disable-pip-version-check "$artifact"; PATH=/tmp/venv/bin:$PATH')),
    ".tar.gz": (("tar -xf", 'mkdir "/srv/another place"; tar -xf "$artifact" -C "/srv/another place"; '
                            'PATH=$(echo "/srv/another place"/somnus-*/bin):$PATH'),),
    ".deb": (("dpkg -i, with Debian's libraries", 'dpkg -i /tmp/debs/*.deb "$artifact"'),),
}
# $root becomes the system with all its mounts, in namespaces of this process.
_MOUNTS = """
    mount -t tmpfs -o mode=755 tmpfs "$over"
    mkdir "$over/above" "$over/work" "$over/root"
    mount -t overlay -o "lowerdir=$root,upperdir=$over/above,workdir=$over/work" overlay "$over/root"
    root=$over/root
"""
_ENTER = _MOUNTS + """
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"
    for device in null urandom; do mount --bind "/dev/$device" "$root/dev/$device"; done
    ip link set lo up
    for file in "$@"; do cp -rL "$file" "$root/tmp/"; done
    if [ -d "$root/tmp/debs" ]; then chmod 755 "$root/tmp/debs"; fi
    exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp DEBIAN_FRONTEND=noninteractive sh -ec "$inside"
"""


class Impossible(Exception):
    """Why this machine has no bare system."""


def made(release):
    """The folder of a bare system, which is made where the cache has none."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if os.getuid() != 0 or missing:
        raise Impossible(f"a bare system needs root{''.join(f', {name}' for name in missing)} (tools/setup.sh tests)")
    root = os.path.join(CACHE, f"{release}-python")
    if not os.path.exists(os.path.join(root, "made")):
        shutil.rmtree(root, ignore_errors=True)
        done = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv", release, root],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise Impossible(f"debootstrap made no system: {done.stdout[-300:]}")
        with open(os.path.join(root, "made"), "w", encoding="utf-8"):
            pass
    with tempfile.TemporaryDirectory() as over:
        done = _in_namespaces(_MOUNTS, {"root": root, "over": over})
    if done.returncode != 0:
        raise Impossible(f"this machine lets root have no mounts of its own: {done.stdout.strip()}")
    return root


def debs_for(root, package):
    """The paths of all Debian packages that `package` needs and the bare system lacks, as apt finds them. Fetched once."""
    folder = os.path.join(CACHE, "bookworm-debs")
    os.makedirs(os.path.join(folder, "partial"), exist_ok=True)
    apt = ["apt-get", "-qq", "-y", "--no-install-recommends", "-o", f"Dir::State::status={root}/var/lib/dpkg/status",
           "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"]
    with tempfile.TemporaryDirectory() as empty:
        os.mkdir(os.path.join(empty, "partial"))
        listed = _run([*apt, "-o", f"Dir::Cache::archives={empty}", "--print-uris", "install", package])
    # 'http://...' name_version_machine.deb size hash; of the package itself there is no address.
    names = re.findall(r"(?m)^'(?!file:)[^']*' (\S+\.deb) \d+", listed)
    paths = [os.path.join(folder, name) for name in names]
    if not all(os.path.exists(path) for path in paths):
        _run([*apt, "-o", f"Dir::Cache::archives={folder}", "--download-only", "install", package])
    return paths


def _run(command):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise Impossible(str(error)) from error
    if done.returncode != 0:
        raise Impossible(f"apt-get has no packages for this machine: {done.stdout[-300:]}")
    return done.stdout


def _in_namespaces(script, variables, files=(), timeout=None):
    """Runs a shell with mounts, a network and processes of its own, of which none is left; both streams are the result's stdout."""
    return subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private",
                           "sh", "-ec", script, "sh", *files], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout, env={**os.environ, **variables})


def install_and_run(root, artifact, command, files=(), timeout=600):
    """Installs `artifact` in the system `root`, then runs `command` of a shell there; `files` (and folders) lie in /tmp. Returns
    the process, and [(name of a step, seconds)], of which the last step is the command's."""
    steps = [(name, text) for end, found in STEPS.items() if artifact.endswith(end) for name, text in found]
    inside = [f"artifact=/tmp/{os.path.basename(artifact)}"]
    for name, text in [*steps, ("", command)]:
        inside += ["date +'begin %s.%N' >>/tmp/times", text]
    inside += ["date +'begin %s.%N' >>/tmp/times; cat /tmp/times"]
    with tempfile.TemporaryDirectory() as folder:
        files = [artifact, *files]
        if artifact.endswith(".deb"):
            debs = os.path.join(folder, "debs")
            os.mkdir(debs)
            for path in debs_for(root, artifact):
                os.symlink(path, os.path.join(debs, os.path.basename(path)))
            files.append(debs)
        over = os.path.join(folder, "over")
        os.mkdir(over)
        done = _in_namespaces(_ENTER, {"root": root, "over": over, "inside": "\n".join(inside)}, files, timeout)
    stamps = [float(stamp) for stamp in re.findall(r"(?m)^begin ([\d.]+)$", done.stdout)]
    done.stdout = re.sub(r"(?m)^begin [\d.]+\n", "", done.stdout)
    return done, [(name, end - begin) for (name, _), begin, end in zip([*steps, ("the command", "")], stamps, stamps[1:])]
