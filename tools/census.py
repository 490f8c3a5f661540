#!/usr/bin/env python3
"""Prints the places that a reviewer should look at, beside the figures of codebases that this codebase wants to stand among.

    tools/census.py                         the whole repository
    tools/census.py coordinator worker/comm only these folders
    tools/census.py --root DIR --top 40     another checkout, longer lists

The tables: the tree as a whole beside the peers; classes by functions, data members, files and lines; part files (a source file
without a class of its own, whose functions belong to a class that another file declares); long functions; wide folders; and the
language of comments, as the share of words that point at a thing without naming the thing. The census fails nothing: a number
is a question to the reviewer, not a limit.

The parser knows no grammar. Comments, strings and preprocessor lines are blanked, and a statement is told by tokens, in the
layout of clang-format. A class belongs to a folder: functions that another folder defines belong to the class only if no other
class has the name.
"""
import argparse
import ast
import collections
import io
import os
import re
import signal
import statistics
import sys
import tokenize

CPP = (".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh")
SOURCES = CPP + (".py", ".proto")
LONG_FUNCTION = 40
WIDE_FOLDER = 80
# Above these sizes a class probably hides a second class; the lists are sorted by both.
MANY_FUNCTIONS, MANY_MEMBERS = 40, 25
# Comments of fewer words say too little of a room's language.
FEW_WORDS = 200

# Counted on 2026-11-28 by the scripts of a survey. An empty cell was not counted.
PEER_COLUMNS = ("files", "lines", "median file", "longest file", f"functions over {LONG_FUNCTION} lines", "mean function",
                "comments", "largest folder", "pointing words")
PEERS = {
    "leveldb": ("100", "19.9k", "106", "1578", "5.5 %", "11.5", "18 %", "31", "1.1 %"),
    "re2": ("39", "20.1k", "284", "2529", "10.3 %", "9.8", "26 %", "32", "2.0 %"),
    "DuckDB": ("2955", "553k", "76", "10374", "5.8 %", "14.4", "12 %", "141", "1.3 %"),
    "CTranslate2": ("302", "34.8k", "47", "1382", "6.3 %", "12.5", "6 %", "80", "0.7 %"),
    "gemma.cpp": ("100", "27.3k", "190", "1448", "8.3 %", "11.9", "20 %", "26", "1.5 %"),
    "turbomind engine": ("28", "5.2k", "75", "1585", "6.9 %", "11.4", "11 %", "28", "2.5 %"),
    "FoundationDB flow": ("188", "64.5k", "157", "4479", "2.3 %", "11.6", "16 %", "97", "1.6 %"),
    "calm": ("15", "4.0k", "236", "801", "16.1 %", "11.2", "8 %", "11", ""),
    "nano-vllm": ("19", "1.4k", "59", "257", "", "", "0 %", "7", ""),
}
# (class, functions, data members, files, lines)
PEER_CLASS = ("turbomind: Scheduler", 32, 13, 2, 1286)

POINTING = frozenset("it its they them their those these one ones another others whoever whatever what whose likewise".split())
POINTING_BEGIN = re.compile(r"(Of|Those|What|One that)\b")
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")

COMMENT = r"//[^\n]*|/\*.*?\*/"
LITERAL = (r'R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'
           r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'")
NOISE = re.compile(f"(?P<comment>{COMMENT})|{LITERAL}", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
TOKEN = re.compile(r"\n|[A-Za-z_]\w*|\d[\w.']*|::|->|<<=|>>=|<=>|[-+*/%&|^!=<>]=|&&|\|\||\S")
ATTRIBUTE = re.compile(r"(ABSL|SOMNUS|GUARDED|TSA|__launch_bounds|__attribute)\w*$|alignas$|explicit$|requires$")
SKIPPED = {"using", "typedef", "friend", "static_assert", "public", "private", "protected"}
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


def blank(match):
    """White space of the same lines; a literal leaves a token."""
    text = match.group()
    return "\n" * text.count("\n") or ("0" if text[0] in "R\"'" else " ")


class Function:
    def __init__(self, owner, name, path, first, last):
        self.owner, self.name, self.path, self.first, self.last = owner, name, path, first, last

    @property
    def lines(self):
        return self.last - self.first + 1


class Class:
    """A declaration with a body: `name` has the enclosing classes' names, and no namespaces."""

    def __init__(self, name, path, first):
        self.name, self.path, self.first = name, path, first
        self.last, self.functions, self.members = first, 0, 0


class CppFile:
    """The classes and the functions of one file."""

    def __init__(self, path, text):
        self.path, self.classes, self.functions = path, [], []
        self.tokens, line = [], 1
        for match in TOKEN.finditer(DIRECTIVE.sub(blank, NOISE.sub(blank, text))):
            if match.group() == "\n":
                line += 1
            else:
                self.tokens.append((match.group(), line))
        at = 0
        while at < len(self.tokens):  # a stray brace ends a scope, not the file
            at = self.scope(at, None) + 1

    def after(self, at):
        """The place behind the bracket that closes the bracket at `at`."""
        depth = 0
        while at < len(self.tokens):
            token = self.tokens[at][0]
            depth += (token in OPEN) - (token in CLOSE)
            at += 1
            if depth == 0:
                break
        return at

    def scope(self, at, owner):
        """Reads declarations up to the brace that closes the scope, and returns the place of that brace."""
        while at < len(self.tokens) and self.tokens[at][0] != "}":
            at = self.statement(at, owner)
        return at

    def statement(self, at, owner):
        """Reads one declaration and returns the place behind the declaration."""
        first, head = at, []
        while at < len(self.tokens):
            token = self.tokens[at][0]
            if token == "}":
                break
            if token == ";":
                self.declared(head, owner)
                return at + 1
            if token == ":" and head and head[-1] in ("public", "private", "protected"):
                return at + 1
            if token in ("(", "["):
                end = self.after(at)
                head.append(("()" if token == "(" else "[]"))
                at = end
            elif token == "{":
                kind, name = kind_of(head)
                line = self.tokens[first][1]
                if kind == "namespace":
                    return min(self.scope(at + 1, owner) + 1, len(self.tokens))
                if kind == "function":
                    end = self.after(at)
                    self.defined(owner, name, line, self.tokens[end - 1][1])
                    return end
                if kind == "class":
                    at = self.class_body(at, owner, name, line)
                    head = []  # behind the body a variable may be declared
                else:
                    at = self.after(at)
                    head.append("{}")
            elif token == "<" and head and is_name(head[-1]) and head[-1] != "operator":
                at, skipped = self.angle(at)
                head.append("<>" if skipped else token)
            else:
                head.append(token)
                at += 1
        return at

    def angle(self, at):
        """(place behind template arguments, True), or (behind the sign, False) where the sign compares."""
        depth, here = 0, at
        while here < len(self.tokens):
            token = self.tokens[here][0]
            if token == "<":
                depth += 1
            elif token == ">":
                depth -= 1
            elif token in ("(", "[", "{"):
                here = self.after(here)
                continue
            elif token in (";", "}", ")", "||"):
                break
            here += 1
            if depth == 0:
                return here, True
        return at + 1, False

    def class_body(self, at, owner, name, line):
        made = Class(f"{owner.name}::{name}" if owner else name, self.path, line)
        self.classes.append(made)
        end = self.scope(at + 1, made)
        made.last = self.tokens[min(end, len(self.tokens) - 1)][1]
        return min(end + 1, len(self.tokens))

    def defined(self, owner, name, first, last):
        """A function with its body: inside a class a member, else a member by the name's qualifier."""
        parts = name.split("::")
        if owner:
            owner.functions += 1
        self.functions.append(Function(owner.name if owner else "::".join(parts[:-1]), parts[-1], self.path, first, last))

    def declared(self, head, owner):
        """A statement that ends with a semicolon: a member or a function declared by the statement."""
        head = without_prefix(head)
        if not owner or not head or head[0] in SKIPPED or "friend" in head or head[0] in ("class", "struct", "union", "enum"):
            return
        if function_name(head):
            owner.functions += 1
        elif "static" not in head and "constexpr" not in head:
            owner.members += 1 + sum(token == "," for token in head)


def is_name(token):
    return re.fullmatch(r"[A-Za-z_]\w*", token) is not None


def without_prefix(head):
    """The statement without template parameters and attributes, and without the attributes' arguments."""
    plain, at = [], 0
    while at < len(head):
        if head[at] == "template":
            at += 1
            if at < len(head) and head[at] == "<>":
                at += 1
        elif ATTRIBUTE.match(head[at]):
            at += 1
            if at < len(head) and head[at] == "()":
                at += 1
        elif head[at] == "[]" and not plain:
            at += 1
        else:
            plain.append(head[at])
            at += 1
    return plain


def function_name(head):
    """The name before the first parentheses, or None where a variable is declared."""
    if "operator" in head:
        at = head.index("operator")
        name = "operator" + head[at + 1] if at + 1 < len(head) else "operator"
        return qualified(head[:at]) + name
    for at, token in enumerate(head):
        if token in ("=", "{}"):
            return None
        if token == "()":
            if at == 0 or not (is_name(head[at - 1]) or head[at - 1] == "<>"):
                continue
            back = at - 1 - (head[at - 1] == "<>")
            tilde = "~" if back > 0 and head[back - 1] == "~" else ""
            return qualified(head[:back - len(tilde)]) + tilde + head[back]
    return None


def qualified(head):
    """`A::B::` of the tokens that come before a name; template arguments are left out."""
    parts = []
    while len(head) >= 2 and head[-1] == "::":
        back = len(head) - 2
        if head[back] == "<>" and back > 0:
            back -= 1
        if not is_name(head[back]):
            break
        parts.insert(0, head[back] + "::")
        head = head[:back]
    return "".join(parts)


def kind_of(head):
    """(kind, name) of the block after the given tokens: a namespace, a class, a function, or an initializer."""
    plain = without_prefix(head)
    if "namespace" in plain[:2] or plain[:1] == ["extern"] and len(plain) == 2:
        return "namespace", ""
    if plain[:1] == ["enum"] or plain[:2] == ["typedef", "enum"]:
        return "initializer", ""
    for keyword in plain[:2]:
        if keyword in ("class", "struct", "union"):
            return "class", class_name(plain[plain.index(keyword) + 1:])
    name = function_name(plain)
    if name is None or "=" in plain[:plain.index("()")] and "operator" not in plain:
        return "initializer", ""
    behind = plain[plain.index("()"):]
    if ":" in behind and (is_name(plain[-1]) or plain[-1] == "<>"):
        return "initializer", ""  # of a member, in a constructor's list
    return "function", name


def class_name(head):
    name = []
    for token in head:
        if token in (":", "final"):
            break
        if is_name(token) or token == "::":
            name = name + [token] if token == "::" or name[-1:] == ["::"] else [token]
    return "".join(name) or "(unnamed)"


def python_functions(path, text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function("", node.name, path, node.lineno, node.end_lineno)


def cpp_comments(text):
    """(line, text) of each comment; comments of whole lines that follow each other are one."""
    found, last, line, place = [], None, 1, 0
    for match in NOISE.finditer(text):
        if match.group("comment") is None:
            continue
        line += text.count("\n", place, match.start())
        place = match.start()
        body = re.sub(r"^\s*(///?|/\*+|\*/|\*)|\*/$", "", match.group().strip(), flags=re.MULTILINE).strip()
        alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        joined = alone and last == line - 1
        found.append((line, body, joined))
        last = line + match.group().count("\n") if alone else None
    return found


def python_comments(text):
    found, last = [], None
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
                alone = not token.line[:token.start[1]].strip()
                found.append((line, token.string.lstrip("# "), alone and last == line - 1))
                last = line if alone else None
            elif token.type == tokenize.STRING and token.string.startswith('"""') and not token.line[:token.start[1]].strip():
                found.append((line, token.string.strip('"'), False))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass
    return found


def markdown(text):
    """Paragraphs and rows of tables, without headings and code, as comments."""
    text = re.sub(r"^```.*?^```|^#+ [^\n]*", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    lines = text.splitlines()
    return [(number, line.strip("#|-* "), number > 1 and bool(lines[number - 2].strip()))
            for number, line in enumerate(lines, 1) if line.strip()]


class Tree:
    """All that is counted of the folders that were asked for."""

    def __init__(self, root, rooms):
        self.root, self.files, self.folders = root, {}, collections.Counter()
        self.classes, self.functions, self.comments = [], [], {}
        for path in paths(root, rooms):
            if path.endswith(SOURCES):
                self.folders[os.path.dirname(path)] += 1
            with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
                self.add(path, file.read())
        self.index = collections.defaultdict(list)
        for declared in self.classes:
            self.index[declared.name.split("::")[-1]].append(declared)
        self.owned = collections.defaultdict(list)
        for function in self.functions:
            owner = self.owner(function)
            if owner:
                self.owned[owner].append(function)

    def add(self, path, text):
        if path.endswith(".md"):
            self.comments[path] = markdown(text)
            return
        self.files[path] = len(text.splitlines())
        if path.endswith(".py"):
            self.functions += python_functions(path, text)
            self.comments[path] = python_comments(text)
        else:
            self.comments[path] = cpp_comments(text)
        if path.endswith(CPP):
            file = CppFile(path, text)
            self.classes += file.classes
            self.functions += file.functions

    def owner(self, function):
        """The class that the function belongs to: of the same file, else of the folder, else the only class with the name."""
        if not function.owner:
            return None
        known = [declared for declared in self.index[function.owner.split("::")[-1]]
                 if f"::{function.owner}".endswith(f"::{declared.name}") or f"::{declared.name}".endswith(f"::{function.owner}")]
        for near in (lambda path: path, os.path.dirname):
            found = [declared for declared in known if near(declared.path) == near(function.path)]
            if found:
                exact = [declared for declared in found if declared.name == function.owner]
                return (exact or found)[0]
        return known[0] if len(known) == 1 else None

    def class_rows(self):
        """(name, functions, members, files, lines), the largest first; lines are the declaration's and the bodies'."""
        rows = []
        for declared in self.classes:
            bodies = [function for function in self.owned[declared]
                      if function.path != declared.path or not declared.first <= function.first <= declared.last]
            lines = declared.last - declared.first + 1 + sum(function.lines for function in bodies)
            files = {declared.path} | {function.path for function in bodies}
            rows.append((f"{declared.path}: {declared.name}", declared.functions, declared.members, len(files), lines))
        return sorted(rows, key=lambda row: (-(row[1] / MANY_FUNCTIONS + row[2] / MANY_MEMBERS), row[0]))

    def part_files(self):
        """(path, class) of source files without a class of their own, whose functions belong to a class of the folder.

        A class that is declared in another class, like `class Loop::Update` beside the functions of Loop, is no class of the
        file's own.
        """
        outer = {declared.name for declared in self.classes}
        with_class = {declared.path for declared in self.classes if declared.name.rpartition("::")[0] not in outer}
        owners = collections.defaultdict(set)
        for declared, functions in self.owned.items():
            for function in functions:
                owners[function.path].add(declared)
        parts = []
        for path in sorted(self.files):
            stem, end = os.path.splitext(path)
            if end not in (".cc", ".cpp", ".cu") or any(stem + other in with_class for other in (end, ".h", ".hpp", ".cuh")):
                continue
            here = [declared.name for declared in owners[path]
                    if declared.path != path and os.path.dirname(declared.path) == os.path.dirname(path)]
            if here:
                parts.append((path, min(here, key=lambda name: (name.count("::"), name))))
        return parts

    def language(self, path):
        """(words, pointing words, comments, comments that begin by pointing)"""
        words = pointing = comments = begins = 0
        for _, text, joined in self.comments.get(path, ()):
            found = WORD.findall(text)
            words += len(found)
            pointing += sum(word.lower() in POINTING for word in found)
            comments += not joined
            begins += not joined and POINTING_BEGIN.match(text) is not None
        return words, pointing, comments, begins


def paths(root, rooms):
    for room in rooms:
        for folder, subfolders, names in os.walk(os.path.join(root, room)):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith((".", "bazel-")) and name != "__pycache__")
            for name in sorted(names):
                if name.endswith(SOURCES + (".md",)) and not name.endswith(("_pb2.py", "_pb2_grpc.py")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def room_of(path):
    """The folder at the second level, or the folder above for files that lie there."""
    return "/".join(os.path.dirname(path).split("/")[:2])


def percent(part, whole, digits=1):
    return f"{100 * part / whole:.{digits}f} %" if whole else ""


def summary(tree, files):
    """The cells of PEER_COLUMNS for the files."""
    functions = [function.lines for function in tree.functions if function.path in files]
    lines = sum(tree.files[path] for path in files)
    commented = sum(len(text.splitlines()) for path in files for _, text, _ in tree.comments[path])
    words = [tree.language(path) for path in files]
    folders = collections.Counter(os.path.dirname(path) for path in files)
    return (str(len(files)), f"{lines / 1000:.1f}k", f"{statistics.median(tree.files[path] for path in files):.0f}",
            str(max(tree.files[path] for path in files)), percent(sum(size > LONG_FUNCTION for size in functions), len(functions)),
            f"{statistics.mean(functions):.1f}" if functions else "", percent(commented, lines, 0), str(max(folders.values())),
            percent(sum(row[1] for row in words), sum(row[0] for row in words)))


def table(title, columns, rows):
    print(f"\n{title}")
    if not rows:
        print("  none")
        return
    rows = [columns] + [tuple(str(cell) for cell in row) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  " + "  ".join(cells).rstrip())


def print_tree(tree):
    product = {path for path in tree.files if not path.startswith("tests/")}
    tests = tree.files.keys() - product
    rows = [(name,) + summary(tree, files) for name, files in (("here", product), ("here, tests/", tests)) if files]
    table("The tree beside its peers", ("",) + PEER_COLUMNS, rows + [(name,) + cells for name, cells in PEERS.items()])


def print_classes(tree, top):
    rows = tree.class_rows()
    large = sum(row[1] > MANY_FUNCTIONS or row[2] > MANY_MEMBERS for row in rows)
    table(f"Classes: {len(rows)}; with more than {MANY_FUNCTIONS} functions or {MANY_MEMBERS} data members: {large}",
          ("", "functions", "members", "files", "lines"), rows[:top] + [PEER_CLASS] if rows else [])


def print_functions(tree, top):
    long = sorted((function for function in tree.functions if function.lines > LONG_FUNCTION),
                  key=lambda function: (-function.lines, function.path, function.first))
    table(f"Functions over {LONG_FUNCTION} lines: {len(long)} of {len(tree.functions)}", ("", "lines"),
          [(f"{function.path}:{function.first} {function.name}", function.lines) for function in long[:top]])


def print_language(tree, top):
    rooms, begins = collections.defaultdict(lambda: [0, 0, 0, 0]), []
    for path in tree.comments:
        for at, count in enumerate(tree.language(path)):
            rooms[room_of(path)][at] += count
        begins += [(f"{path}:{line} {text.splitlines()[0][:70]}",) for line, text, joined in tree.comments[path]
                   if not joined and POINTING_BEGIN.match(text)]
    rows = sorted(((room, counts[0], percent(counts[1], counts[0]), counts[2], counts[3]) for room, counts in rooms.items()
                   if counts[0] >= FEW_WORDS), key=lambda row: (-float(row[2].split()[0]), row[0]))
    table(f"Comments and pages by room ({', '.join(sorted(POINTING))}), of {FEW_WORDS} words and more",
          ("", "words", "pointing", "comments", "begin by pointing"), rows)
    table(f'Comments that begin with "Of", "Those", "What" or "One that": {len(begins)}', ("where",), begins[:top])


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the census ends with a reader such as head
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="folders of the repository (default: all)")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))), help="the repository")
    parser.add_argument("--top", type=int, default=20, help="rows of each list (default: 20)")
    options = parser.parse_args()
    rooms = options.rooms or sorted(name for name in os.listdir(options.root)
                                    if os.path.isdir(os.path.join(options.root, name)) and not name.startswith((".", "bazel-")))
    missing = [room for room in rooms if not os.path.isdir(os.path.join(options.root, room))]
    if missing:
        sys.exit(f"error: no such folder in {options.root}: {' '.join(missing)}")
    tree = Tree(options.root, [os.path.normpath(room) for room in rooms])
    print_tree(tree)
    print_classes(tree, options.top)
    parts = tree.part_files()
    table(f"Part files: {len(parts)}", ("", "a part of"), parts)
    print_functions(tree, options.top)
    table(f"Folders with more than {WIDE_FOLDER} source files", ("", "files"),
          [(folder, count) for folder, count in tree.folders.most_common() if count > WIDE_FOLDER])
    print_language(tree, options.top)


if __name__ == "__main__":
    main()
