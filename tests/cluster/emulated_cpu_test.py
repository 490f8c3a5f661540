"""Programs on x86-64 processors that this host is not: emulated by Debian's qemu-user, which executes neither AVX-512 nor
AVX-VNNI nor AMX, so that an instruction of a better set than the emulated processor has ends the program by SIGILL.

tests/kernels/instruction_sets_test.py reads the instructions of the programs that this test executes.
"""
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster.harness import BIN, SOMNUS, WORKER, Cluster, expected, tiny

QEMU = shutil.which("qemu-x86_64")
COORDINATOR = os.path.join(BIN, "coordinator", "coordinator")
MODEL = "llama-uneven"
CASES = [case for case in expected(MODEL) if case["name"].startswith("prompt-")][:3]
# The instruction set that programs choose on each processor. Sandy Bridge has AVX without integer instructions, Ivy Bridge has
# F16C without FMA, Milan is Zen 3, and Skylake's servers lose the features that qemu lacks.
SETS = {"Opteron_G1": "portable", "Conroe": "portable", "Nehalem": "portable", "SandyBridge": "portable", "IvyBridge": "portable",
        "Haswell,-fma": "portable", "Haswell,-f16c": "portable", "Haswell": "avx2", "EPYC": "avx2", "EPYC-Milan": "avx2",
        "Skylake-Server": "avx2", "max": "avx2"}
SERVERS = ("Nehalem", "Haswell")  # a processor of each instruction set
# Cases of tests/kernels for every kind of kernel, which take seconds in the emulator.
UNIT_TESTS = {"linear_test": "*EqualsTheSumInDouble*", "quantized_test": "*ExtremeValuesAreExact*", "float8_test": "*NanAndInfStayInTheirRow*",
              "attention_test": "*NanStaysInItsSequence*", "rows_test": "*"}
START_S = 300
DOCTOR_S = 300


@functools.lru_cache(maxsize=None)
def quiet(cpu):
    """The processor without the features that qemu lacks: qemu prints a line for each lacking feature in each thread."""
    done = subprocess.run([QEMU, "-cpu", cpu, "/bin/true"], capture_output=True, text=True, timeout=DOCTOR_S)
    return ",".join([cpu, *(f"-{name}" for name in re.findall(r"TCG doesn't support requested feature: \S+\.(\S+) \[bit", done.stderr))])


def emulated(cpu, *command, env=None, timeout=DOCTOR_S):
    """Runs a command on one CPU: threads that wait for each other on a busy host spend most of their time in turns."""
    one_cpu = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    return subprocess.run([*one_cpu, QEMU, "-cpu", quiet(cpu), *command], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**os.environ, "SOMNUS_CPU_ISA": "", **(env or {})})


def script(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)
    return path


class EmulatedCluster(Cluster):
    """A server whose processes all run on an emulated processor: `somnus serve` is the coordinator's own command line, and a
    local worker is a script, as nothing on the host starts an emulator by itself."""

    def __init__(self, cpu, *flags, **options):
        cpu = quiet(cpu)
        self._folder = tempfile.TemporaryDirectory(prefix="somnus_")
        coordinator = script(self._folder.name, "serve", f'shift 2; exec {QEMU} -cpu {cpu} {COORDINATOR} "$@"')
        worker = script(self._folder.name, "worker", f'exec {QEMU} -cpu {cpu} {WORKER} "$@"')
        # On a busy host an emulator takes seconds for steps of milliseconds.
        patience = (f"--hang-timeout={START_S}s", f"--register-timeout={START_S}s")
        super().__init__(tiny(MODEL), "--dtype=float32", f"--worker-binary={worker}", *patience, *flags, prefix=(coordinator,), **options)

    def __exit__(self, *error):
        super().__exit__(*error)
        self._folder.cleanup()


@unittest.skipUnless(platform.machine() == "x86_64", "the host is no x86-64: tools/arm_check.sh emulates Arm")
@unittest.skipUnless(QEMU, "qemu-x86_64 is not here (Debian's qemu-user; tools/setup.sh tests installs it for root)")
class EmulatedCpu(unittest.TestCase):
    def test_the_doctor_chooses_the_best_set_of_each_processor(self):
        for cpu, isa in SETS.items():
            with self.subTest(cpu):
                done = emulated(cpu, SOMNUS, "doctor", "--json", "--no-measure")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                report = json.loads(done.stdout)
                self.assertEqual((report["isa"], report["isas"][-1]), (isa, isa))

    def test_the_doctor_measures(self):
        for cpu in ("Nehalem", "Haswell"):
            with self.subTest(cpu):
                done = emulated(cpu, SOMNUS, "doctor", tiny(MODEL))
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn(f"instructions   {SETS[cpu]}", done.stdout)

    def test_a_set_that_the_processor_lacks_is_an_error(self):
        for cpu, isa, of_cpu in (("Haswell", "avx512", "portable, avx2"), ("Haswell", "amx", "portable, avx2"),
                                 ("Haswell", "avx_vnni", "portable, avx2"), ("Nehalem", "avx2", "portable")):
            with self.subTest(cpu=cpu, isa=isa):
                done = emulated(cpu, SOMNUS, "doctor", "--no-measure", env={"SOMNUS_CPU_ISA": isa})
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(done.stderr, f'error: SOMNUS_CPU_ISA is "{isa}", which this CPU lacks; it may be one of {of_cpu}\n')

    def test_a_server_is_told_so_too_and_ends(self):
        with EmulatedCluster("Haswell", workers=1, wait=False, env={"SOMNUS_CPU_ISA": "avx512"}) as cluster:
            self.assertEqual(cluster.process.wait(START_S), 1, cluster.log())
            self.assertIn('SOMNUS_CPU_ISA is "avx512", which this CPU lacks; it may be one of portable, avx2', cluster.log())
            self.assertNotIn("was not formed", cluster.log())

    def test_a_cluster_serves_the_same_tokens(self):
        for cpu in SERVERS:
            with self.subTest(cpu), EmulatedCluster(cpu, workers=2, wait=False, env={"SOMNUS_CPU_ISA": ""}) as cluster:
                cluster.wait_ready(START_S)
                for case in CASES:
                    self.assertEqual(cluster.tokens(case["prompt"], ignore_eos=case["ignore_eos"]), case["tokens"], case["name"])
                self.assertEqual(re.findall(r"runs on cpu, \d+ threads?, (\w+);", cluster.log()), [SETS[cpu]] * 2)
                self.assertEqual(cluster.stop(START_S), 0)

    def test_portable_kernels_compute_what_their_tests_expect(self):
        self.run_unit_tests("Nehalem")

    def test_avx2_kernels_compute_what_their_tests_expect(self):
        self.run_unit_tests("Haswell")

    def run_unit_tests(self, cpu):
        for name, cases in UNIT_TESTS.items():
            with self.subTest(name):
                # The cases of the processor's best set, and the cases without a set.
                lesser = "" if SETS[cpu] == "portable" else "-*/portable"
                done = emulated(cpu, os.path.join(BIN, "tests", "kernels", name), f"--gtest_filter={cases}{lesser}", "--gtest_brief=1", timeout=500)
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-1000:])
                self.assertRegex(done.stdout, r"\[  PASSED  \] [1-9]")
