#!/usr/bin/env python3
"""Makes the artifacts of tools/package.sh from programs that are built. Usage: make.py BIN OUT KIND...

SOURCE_DATE_EPOCH is set."""
import ast
import gzip
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

import archives
import man_page
import programs
import wheel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLIENT = os.path.join(ROOT, "clients", "python")
DOCS = ("README.md", "CHANGELOG.md")
# Where shells look in /usr/share.
COMPLETIONS = {"bash": "bash-completion/completions/somnus", "zsh": "zsh/vendor-completions/_somnus",
               "fish": "fish/vendor_completions.d/somnus.fish"}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def version():
    return re.search(r'kVersion\[\] = "([^"]+)"', read("base", "version.h")).group(1)


def generate_messages(target):
    """The package somnus.v1, as made by the client's own setup.py, by the compiler that made the programs' messages."""
    names = ast.literal_eval(re.search(r"^PROTOS = (\(.*\))$", read("clients", "python", "setup.py"), re.MULTILINE).group(1))
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"somnus/v1/{name}.proto" for name in names]
        for name, path in zip(names, paths):
            write(os.path.join(folder, path), read("proto", f"{name}.proto").replace('import "proto/', 'import "somnus/v1/'))
        subprocess.run(["protoc", f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}", "-I", folder,
                        f"--python_out={target}", f"--grpc_python_out={target}", *paths], check=True, stdin=subprocess.DEVNULL)
    write(os.path.join(target, "somnus", "v1", "__init__.py"), "")


def make_wheel(source, out, work, times):
    folder = os.path.join(work, "wheel")
    for name in sorted(os.listdir(os.path.join(CLIENT, "somnus"))):
        if name.endswith((".py", ".typed")):
            path = os.path.join(folder, "somnus", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copyfile(os.path.join(CLIENT, "somnus", name), path)
    generate_messages(folder)
    programs.stage(source, os.path.join(folder, "somnus", "_programs"), with_libraries=True)
    tag = wheel.tag(programs.needed_glibc(folder), platform.machine())
    info = os.path.join(folder, f"somnus-{version()}.dist-info")
    write(os.path.join(info, "METADATA"), wheel.metadata(version(), read("clients", "python", "README.md")))
    write(os.path.join(info, "WHEEL"), wheel.wheel_file(tag))
    write(os.path.join(info, "entry_points.txt"), "[console_scripts]\nsomnus = somnus.programs:main\n")
    path = os.path.join(out, f"somnus-{version()}-{tag}.whl")
    wheel.write(folder, path, times)
    return path


def add_docs(target):
    for name in DOCS:
        shutil.copyfile(os.path.join(ROOT, name), os.path.join(target, name))
    shutil.copytree(os.path.join(ROOT, "docs"), os.path.join(target, "docs"),
                    ignore=lambda folder, names: [name for name in names if not name.endswith((".md", ".svg", ".textproto"))
                                                  and not os.path.isdir(os.path.join(folder, name))])


def make_tarball(source, out, work, times):
    name = f"somnus-{version()}-linux-{platform.machine()}"
    folder = os.path.join(work, name)
    programs.stage(source, folder, with_libraries=True)
    os.makedirs(os.path.join(folder, "bin"))
    os.symlink("../tools/somnus", os.path.join(folder, "bin", "somnus"))
    add_docs(folder)
    shutil.copytree(os.path.join(ROOT, "tools", "deploy"), os.path.join(folder, "deploy"), ignore=shutil.ignore_patterns("__pycache__"))
    path = os.path.join(out, f"{name}.tar.gz")
    archives.tarball(folder, path, times)
    return path


def debian_depends(folder):
    """The Debian packages of the libraries that the programs are linked with, with versions, as dpkg-shlibdeps finds them."""
    write(os.path.join(folder, "debian", "control"), "Source: somnus\n\nPackage: somnus\nArchitecture: any\n")
    paths = [os.path.join("opt/somnus", one) for one in programs.PROGRAMS]
    found = subprocess.run(["dpkg-shlibdeps", "-O", *paths], cwd=folder, check=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True).stdout
    shutil.rmtree(os.path.join(folder, "debian"))
    return found.strip().removeprefix("shlibs:Depends=")


def make_debian_package(source, out, work, times):
    folder = os.path.join(work, "deb")
    programs.stage(source, os.path.join(folder, "opt", "somnus"), with_libraries=False)
    depends = debian_depends(folder)
    shared = os.path.join(folder, "usr", "share")
    os.makedirs(os.path.join(folder, "usr", "bin"))
    os.symlink("../../opt/somnus/tools/somnus", os.path.join(folder, "usr", "bin", "somnus"))
    os.makedirs(os.path.join(shared, "doc", "somnus"))
    add_docs(os.path.join(shared, "doc", "somnus"))
    units = os.path.join(ROOT, "tools", "deploy", "systemd")
    for name in sorted(os.listdir(units)):
        if name.endswith(".service"):
            target = os.path.join(folder, "lib", "systemd", "system", name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(os.path.join(units, name), target)
    for shell, name in COMPLETIONS.items():
        write(os.path.join(shared, name), programs.output(os.path.join(source, "tools", "somnus"), "completions", shell))
    help_text = programs.output(os.path.join(source, "coordinator", "coordinator"), "--help=all")
    page = man_page.roff("somnus", version(), help_text, commands_of(source), times)
    os.makedirs(os.path.join(shared, "man", "man1"))
    with open(os.path.join(shared, "man", "man1", "somnus.1.gz"), "wb") as file:
        file.write(gzip.compress(page.encode(), mtime=0))
    machine = programs.output("dpkg", "--print-architecture").strip()
    size = sum(os.lstat(os.path.join(where, name)).st_size for where, _, files in os.walk(folder) for name in files)
    write(os.path.join(folder, "DEBIAN", "control"), archives.debian_control(version(), machine, depends, size // 1024))
    write(os.path.join(folder, "DEBIAN", "postinst"), archives.POSTINST)
    os.chmod(os.path.join(folder, "DEBIAN", "postinst"), 0o755)
    path = os.path.join(out, f"somnus_{version()}_{machine}.deb")
    archives.debian_package(folder, path, times)
    return path


def commands_of(source):
    """(name, help text) of each command but serve, which has the server's flags."""
    somnus = os.path.join(source, "tools", "somnus")
    names = [line.split("\t")[0] for line in programs.output(somnus, "--help=commands").splitlines()]
    return [(name, programs.output(somnus, name, "--help")) for name in names if name != "serve"]


MAKERS = {"wheel": make_wheel, "tarball": make_tarball, "deb": make_debian_package}


def main():
    source, out, *kinds = sys.argv[1:]
    os.umask(0o022)
    os.makedirs(out, exist_ok=True)
    for kind in kinds:
        with tempfile.TemporaryDirectory() as work:
            os.chmod(work, 0o755)
            path = MAKERS[kind](os.path.abspath(source), os.path.abspath(out), work, int(os.environ["SOURCE_DATE_EPOCH"]))
        print(f"{path}  {os.path.getsize(path) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
