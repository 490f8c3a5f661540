"""Code for a newer instruction set than the baseline stays where no program runs the code by accident.

Reads the objects and the programs that the build has made. A unit of kernels/cpu/kernels_*.cc defines one table, runs
nothing at the program's start, and asks nothing of the CPU; every function that it has is its own. No other function of
a program holds an instruction that a CPU may lack. Needs no other CPU: tests/cluster/emulated_cpu_test.py runs them.
"""
import glob
import os
import platform
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SOMNUS_BIN", os.path.join(ROOT, "bazel-bin"))
PROGRAMS = ("worker/worker", "coordinator/coordinator", "tools/somnus", "tools/bench/kernel_bench")
SETS = ("avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_vbmi", "amx")
# Functions that the C library has for every CPU.
FROM_OUTSIDE = {"memcpy", "memset", "memmove", "memcmp", "erff", "erf", "log", "logf", "exp", "expf", "sqrt", "sqrtf",
                "tanh", "tanhf", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
# Functions with instructions of their own, called once the CPU was asked: conversions of a load (kernels/float_convert.cc),
# and the loops that measure peaks (tools/probe/machine_peak.cc).
ASKED_BEFORE = {"ToBf16Avx2", "ToF16Avx2", "FmaLoop", "PairBytesLoop", "DotBytesLoop", "WideFmaLoop", "WidePairBytesLoop",
                "WideDotBytesLoop", "WideDotBf16Loop", "LoadTiles", "TileBf16Loop", "TileBytesLoop"}
KERNEL = re.compile(f"3cpu(?:{'|'.join(f'{len(name)}{name}' for name in SETS)})")
# NVIDIA's runtime, which chooses for itself.
LIBRARY = re.compile(r"cudart|^__cuda")
# Instructions with a VEX or EVEX prefix begin with v, except for masks, tiles and bit manipulation.
SYSTEM = "err|erw|mcall|mlaunch|mresume|mxoff|mfunc"
# SSE3 to SSE4.2, and BMI except for instructions that older CPUs execute as similar instructions (tzcnt, lzcnt).
LATER = (r"pshufb|palignr|pabs[bwd]|psign[bwd]|ph(?:add|sub)\w+|pmulhrsw|pmaddubsw|h(?:add|sub)p[sd]|addsubp[sd]|lddqu|movddup|movs[hl]dup"
         r"|pblend\w+|blendv?p[sd]|dpp[sd]|round[sp][sd]|insertps|extractps|pinsr[bdq]|pextr[bdq]|pm(?:ax|in)(?:s[bd]|u[wd])|pmulld|pmuldq"
         r"|ptest|pcmpeqq|pcmpgtq|pcmp[ei]str[im]|pmov[sz]x\w+|packusdw|mpsadbw|phminposuw|movntdqa|crc32[bwlq]?|popcnt[wlq]?|andn|bextr"
         r"|bls(?:i|r|msk)|mulx|rorx|[sr][ah][lr]x|pdep|pext|movbe|aes\w+|pclmul\w+|sha(?:1|256)\w+")
# A line of objdump with an instruction that a plain x86-64 CPU may lack.
NEWER = re.compile(rf"\t(?:(?:lock|repn?z?|bnd|notrack|data16|[cdefgs]s|addr32|{{\w+}}) )*(?:v(?!(?:{SYSTEM})\b)|ldtilecfg|tile|(?:{LATER})\b)"
                   r"|%[yz]mm|%tmm|%k[0-7]")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def units():
    """{instruction set: the object of its unit}."""
    return {name: next(iter(glob.glob(os.path.join(BIN, "kernels", "cpu", "_objs", f"kernels_{name}", "*.o"))), None)
            for name in ("portable", *SETS)}


def faults_of_unit(path):
    """Why an object may not be linked into a program that must start on every CPU."""
    faults = []
    exported = []
    for line in output_of("nm", "--format=posix", path).splitlines():
        name, kind = line.split()[:2]
        if kind == "U":
            if name not in FROM_OUTSIDE:
                faults.append(f"uses {name}")
        elif kind in "Vu":
            continue  # a constant of a header is the same in all units
        elif kind in "wWi":
            faults.append(f"has {name}, which the linker may keep for all units")
        elif kind.isupper():
            exported.append(name)
            if kind not in "DR":
                faults.append(f"exports {name}, which is not data")
    if len(exported) != 1:
        faults.append(f"exports {exported}, not one table")
    for section in re.findall(r"(?m)^\s*\d+\s+(\S+)", output_of("objdump", "--section-headers", path)):
        if section.startswith((".init", ".ctors", ".preinit", ".fini", ".dtors")):
            faults.append(f"runs code at the program's start or end ({section})")
    return faults


def functions_of(path):
    """[(address, mangled name)] of a program, by address."""
    lines = (line.split() for line in output_of("nm", "--numeric-sort", "--defined-only", path).splitlines())
    return [(int(words[0], 16), words[2]) for words in lines if len(words) == 3 and words[1] in "tTwWi"]


def ranges_without_kernels(functions):
    """Addresses [begin, end) of functions that are no kernels; the kernels of one unit lie together."""
    ranges, begin = [], None
    for address, name in functions:
        if KERNEL.search(name):
            if begin is not None:
                ranges.append((begin, address))
            begin = None
        elif begin is None:
            begin = address
    return ranges + ([(begin, None)] if begin is not None else [])


def newer_functions(path):
    """{function: its first instruction that a CPU may lack} of a program, without the kernels."""
    found, function = {}, None
    for begin, end in ranges_without_kernels(functions_of(path)):
        stop = [f"--stop-address={end:#x}"] if end is not None else []
        command = ["objdump", "-d", "-w", "--no-show-raw-insn", f"--start-address={begin:#x}", *stop, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dump:
            for line in dump.stdout:
                if line.endswith(">:\n"):
                    function = line[line.index("<") + 1:-3]
                elif function not in found and NEWER.search(line):
                    found[function] = line.partition("\t")[2].strip()
        if dump.returncode != 0:
            raise AssertionError(f"objdump {path}: exit {dump.returncode}")
    return found


def name_of(function):
    """The unqualified name of a mangled function of somnus::(anonymous namespace), or ""."""
    match = re.match(r"_ZN6somnus12_GLOBAL__N_1L?(\d+)", function)
    return function[match.end():match.end() + int(match.group(1))] if match else ""


@unittest.skipUnless(platform.machine() == "x86_64", "Arm's sets are read by tools/arm_check.sh's emulator alone")
class InstructionSets(unittest.TestCase):
    def test_units_export_one_table_and_run_nothing_by_themselves(self):
        for name, path in units().items():
            with self.subTest(name):
                self.assertIsNotNone(path, f"no object of kernels_{name} in {BIN}: build it first")
                self.assertEqual(faults_of_unit(path), [])

    def test_every_unit_is_looked_at(self):
        sources = {os.path.basename(path)[len("kernels_"):-len(".cc")] for path in glob.glob(os.path.join(ROOT, "kernels", "cpu", "kernels_*.cc"))}
        self.assertEqual({name for name in sources if not name.startswith("neon")}, {"portable", *SETS})

    def test_programs_hold_newer_instructions_in_kernels_alone(self):
        for program in PROGRAMS:
            with self.subTest(program):
                path = os.path.join(BIN, program)
                others = {function: instruction for function, instruction in newer_functions(path).items()
                          if name_of(function) not in ASKED_BEFORE and not LIBRARY.search(function)}
                self.assertEqual(others, {})
                if program != "coordinator/coordinator":
                    kernels = [name for _, name in functions_of(path) if KERNEL.search(name)]
                    self.assertGreater(len(kernels), 100, "the kernels were not seen")

    def test_what_is_newer(self):
        for line in ("  1:\tvmovaps %ymm0,%ymm1", "  1:\tkmovw  %eax,%k1", "  1:\ttilerelease", "  1:\tvpdpbusd %zmm0,%zmm1,%zmm2",
                     "  1:\tpshufb %xmm0,%xmm1", "  1:\tpopcnt %rax,%rax", "  1:\tshlx   %rax,%rbx,%rcx", "  1:\tvzeroupper "):
            self.assertRegex(line, NEWER)
        for line in ("  1:\tmovaps %xmm0,%xmm1", "  1:\trep stos %al,%es:(%rdi)", "  1:\tverw   %ax", "  1:\tbnd jmp 1234 <verify>", "  1:\tret",
                     "  1:\ttzcnt  %rax,%rax", "  1:\tlock cmpxchg %rax,(%rbx)"):
            self.assertNotRegex(line, NEWER)


if __name__ == "__main__":
    unittest.main()
