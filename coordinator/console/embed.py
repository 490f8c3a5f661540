"""Writes a C++ file that holds the files of the console. Usage: embed.py FILE... > console_files.cc"""
import hashlib
import os
import sys

HEAD = """// Made by coordinator/console/embed.py.
#include "coordinator/console/embedded_file.h"

namespace somnus {
namespace {

using absl::string_view;

"""
MIDDLE = """constexpr EmbeddedFile kFiles[] = {
"""
TAIL = """};

}  // namespace

absl::Span<const EmbeddedFile> EmbeddedFiles() { return kFiles; }

}  // namespace somnus
"""
LINE_BYTES = 100


def literal(data):
    """The bytes as string literals; an octal escape has three digits, so that no later digit becomes a part of it."""
    for start in range(0, len(data), LINE_BYTES):
        piece = data[start:start + LINE_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in piece)
        yield f'    "{text}"\n'


def main():
    paths = sorted(sys.argv[1:], key=os.path.basename)
    out, rows = [HEAD], []
    for i, path in enumerate(paths):
        with open(path, "rb") as file:
            data = file.read()
        out.append(f"constexpr char kFile{i}[] =\n{''.join(literal(data))};\n")
        etag = hashlib.sha256(data).hexdigest()[:16]
        rows.append(f'    {{"{os.path.basename(path)}", string_view(kFile{i}, {len(data)}), "\\"{etag}\\""}},\n')
    sys.stdout.write("".join(out + [MIDDLE] + rows + [TAIL]))


if __name__ == "__main__":
    main()
