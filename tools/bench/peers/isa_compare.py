#!/usr/bin/env python3
"""Somnus beside llama.cpp on each instruction set of this CPU, in turns: decode batches and a prompt, one table.

Usage: isa_compare.py --sets avx2,avx512,... [--peer-dir SET=DIR ...] [--peer-dir DIR] [--batches 1,4,8,16,32]
         [--prefill-tokens 512] [--prompt-tokens 128] [--new-tokens 64] [--rounds 3] [--threads N] [--json FILE]
         [--dry-run] FILE.gguf ...
       isa_compare.py --recipe         how llama.cpp is built for each set
A set is a name of SOMNUS_CPU_ISA. DIR holds the llama-batched-bench of a llama.cpp that was built for that set, or bin/
does; without SET= it is for all sets that have none of their own. Both sides read the same files: Somnus computes
quantized weights as they are stored (--no-dequantize), and others in the type of the file. decode_bench measures, and
takes turns with the peer within each round. A row has medians with the least and the greatest; the ceiling is the one
of memory or of arithmetic that is nearer. A set that this CPU lacks is left out, and said so.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
PEER = "llama-batched-bench"
# The type of a file, as the end of its name has it: "model-Q4_K_M.gguf", "model.bf16.gguf".
TYPE = re.compile(r"[-.]((?:I?Q\d\w*)|BF16|F16|F32|MXFP4)$", re.IGNORECASE)
DTYPES = {"F16": "float16", "F32": "float32"}  # others are computed with bfloat16
LACKING = re.compile(r'SOMNUS_CPU_ISA is "\w+"')  # and why it cannot be

# The names of each set's instructions in ggml's CMakeLists.txt. Instructions that are not named are switched off: without
# GGML_NATIVE, all up to AVX2 would be on.
UP_TO_AVX2 = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
X86 = {"portable": (), "avx2": UP_TO_AVX2, "avx_vnni": (*UP_TO_AVX2, "AVX_VNNI"), "avx512": (*UP_TO_AVX2, "AVX512")}
X86["avx512_vnni"] = (*X86["avx512"], "AVX512_VNNI")
X86["avx512_bf16"] = (*X86["avx512_vnni"], "AVX512_BF16")
X86["amx"] = (*X86["avx512_bf16"], "AMX_TILE", "AMX_INT8", "AMX_BF16")
ALL_X86 = (*X86["amx"], "AVX_VNNI")
ARM = {"neon": "armv8-a", "neon_dotprod": "armv8.2-a+dotprod", "neon_bf16": "armv8.2-a+dotprod+bf16"}
SETS = (*X86, *ARM)


def cmake_flags(name):
    """The flags that build llama.cpp for a set, whatever the machine that builds it has."""
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF"]
    if name in ARM:
        return [*flags, f"-DGGML_CPU_ARM_ARCH={ARM[name]}"]
    return flags + [f"-DGGML_{feature}={'ON' if feature in X86[name] else 'OFF'}" for feature in ALL_X86]


def recipe():
    return "\n".join(f"cmake -S llama.cpp -B build-{name} {' '.join(cmake_flags(name))} && "
                     f"cmake --build build-{name} --target {PEER}" for name in SETS)


def peer_dirs(values):
    """{set: folder}, that of "" for all others."""
    found = {}
    for value in values:
        name, separator, folder = value.rpartition("=")
        if separator and name not in SETS:
            raise SystemExit(f"error: --peer-dir={value}: {name} is none of {', '.join(SETS)}")
        found[name] = folder
    return found


def peer_binary(dirs, name):
    """The peer's program for a set; None without one."""
    folder = dirs.get(name, dirs.get(""))
    if folder is None:
        return None
    for path in (os.path.join(folder, PEER), os.path.join(folder, "bin", PEER)):
        if os.access(path, os.X_OK):
            return path
    raise SystemExit(f"error: --peer-dir: there is no {PEER} in {folder}")


def type_of(path):
    stem = os.path.splitext(os.path.basename(path))[0]
    match = TYPE.search(stem)
    return match.group(1).upper() if match else stem


def command_of(args, path, peer):
    command = [os.path.join(BIN, "tools", "bench", "decode_bench"), f"--model={path}", "--no-dequantize",
               f"--dtype={DTYPES.get(type_of(path), 'bfloat16')}", f"--batches={args.batches}",
               f"--prompt-tokens={args.prompt_tokens}", f"--new-tokens={args.new_tokens}",
               f"--prefill-tokens={args.prefill_tokens}", f"--rounds={args.rounds}", f"--threads={args.threads}"]
    return command + ([f"--peer={peer}", f"--peer-model={path}"] if peer else [])


def measure(command, name):
    """(rows of decode_bench, its line of peaks), or (None, why the set is left out)."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run([*command, f"--json={file.name}"], env={**os.environ, "SOMNUS_CPU_ISA": name},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            words = done.stderr.strip() or f"exit code {done.returncode}"
            if LACKING.search(words):
                return None, words
            raise SystemExit(f"error: {name}: {words}")
        lines = done.stdout.splitlines()
        return json.load(file), next((line for line in lines if "GFLOP/s" in line), "")


def spread(values, digits):
    if not values:
        return "-"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def ceiling(row):
    """The share of the ceiling that is nearer: of memory or of arithmetic."""
    found = [(statistics.median(row[name]), name, word) for name, word in
             (("read_bandwidth_percent", "read"), ("peak_percent", "peak")) if row[name]]
    if not found:
        return "-"
    _, name, word = max(found)
    return f"{spread([value / 100 for value in row[name]], 2)} of {word}"


def is_wanted(row, prompts):
    """All decode rows, and of prompts those that were measured alone."""
    return row["kind"] == "decode" or (row["new_tokens"] == 0 and row["prompt_tokens"] in prompts)


HEAD = ("| set | weights | batch | tokens/s | llama.cpp | ratio | of the ceiling | dropped |\n"
        "|---|---|---|---|---|---|---|---|")


def line_of(name, kind, row):
    """A line of the table: a set, a type of weights and a row of decode_bench."""
    batch = row["batch"] if row["kind"] == "decode" else f"prefill {row['prompt_tokens']}"
    return (f"| `{name}` | {kind} | {batch} | {spread(row['tokens_per_second'], 1)} | "
            f"{spread(row['peer_tokens_per_second'], 1)} | {spread(row['ratio'], 2)} | {ceiling(row)} | {row['dropped']} |")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE.gguf")
    parser.add_argument("--sets", default="", help=f"of {', '.join(SETS)}")
    parser.add_argument("--peer-dir", action="append", default=[], metavar="[SET=]DIR")
    parser.add_argument("--batches", default="1,4,8,16,32")
    parser.add_argument("--prefill-tokens", default="512")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", metavar="FILE", help="also write all samples to this file")
    parser.add_argument("--dry-run", action="store_true", help="print the commands alone")
    parser.add_argument("--recipe", action="store_true", help="print how llama.cpp is built for each set")
    args = parser.parse_args()
    args.sets = [name for name in args.sets.split(",") if name]
    if args.recipe:
        return args
    wrong = [name for name in args.sets if name not in SETS]
    if wrong or not args.sets:
        parser.error(f"--sets: some of {', '.join(SETS)} are wanted, not '{','.join(wrong)}'")
    missing = [path for path in args.files if not os.path.exists(path)]
    if missing or not args.files:
        parser.error(f"FILE.gguf: {', '.join(missing) or 'none'} given, which does not exist")
    return args


def run_all(args):
    """[(set, type, row)], {set: its peaks}, [why a set is left out]; prints the table as it grows."""
    dirs = peer_dirs(args.peer_dir)
    prompts = [int(tokens) for tokens in args.prefill_tokens.split(",")]
    results, peaks, left_out = [], {}, []
    if not args.dry_run:
        print(HEAD, flush=True)
    for name in args.sets:
        peer = peer_binary(dirs, name)
        for path in args.files:
            command = command_of(args, path, peer)
            if args.dry_run:
                print(f"SOMNUS_CPU_ISA={name} {shlex.join(command)}")
                continue
            print(f"{name}, {os.path.basename(path)}", file=sys.stderr, flush=True)
            rows, words = measure(command, name)
            if rows is None:
                left_out.append(words)
                break
            peaks[name] = words
            wanted = [(name, type_of(path), row) for row in rows if is_wanted(row, prompts)]
            results += wanted
            print("\n".join(line_of(*one) for one in wanted), flush=True)
    return results, peaks, left_out


def main():
    args = parse()
    if args.recipe:
        print(recipe())
        return
    results, peaks, left_out = run_all(args)
    if args.dry_run:
        return
    print(f"\n{args.threads} threads, {args.rounds} rounds; median (least..greatest).")
    gbps = [value for _, _, row in results for value in row["read_gbps"]]
    print(f"Memory gave {spread(gbps, 1)} GB/s.")
    for name, words in peaks.items():
        print(f"{name}: {words}")
    for words in left_out:
        print(f"left out: {words}")
    if args.json:
        rows = [{"set": name, "weights": kind, **row} for name, kind, row in results]
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"peaks": peaks, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
