"""The systemd units: systemd takes the units, which agree with flags and times of the programs."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from deploy.sources import DEPLOY, flags, flags_of, longest_end_s, read, seconds

FOLDER = os.path.join(DEPLOY, "systemd")
UNITS = {"somnus-coordinator.service": "coordinator", "somnus-worker@.service": "worker"}
WORKER_ENDS_S = 7  # after --term-grace
# systemd's own measure, from 0 to 10; above this it is "MEDIUM".
MOST_EXPOSED = 2.5


def settings(name):
    """[(key, value)] of all sections; a key may come several times."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return [tuple(part.strip() for part in line.split("=", 1)) for line in file if re.match(r"\w+=", line)]


class Units(unittest.TestCase):
    def test_they_start_the_programs_with_flags_that_exist(self):
        for name, program in UNITS.items():
            with self.subTest(name):
                command = dict(settings(name))["ExecStart"].split()
                self.assertEqual(command[0], f"/opt/somnus/{program}/{program}")
                self.assertEqual([flag for flag in flags_of(command) if flag not in flags()[program]], [])

    def test_there_is_time_to_drain(self):
        for name, program in UNITS.items():
            with self.subTest(name):
                unit = dict(settings(name))
                flag, more_s = ("shutdown-timeout", longest_end_s()) if program == "coordinator" else ("term-grace", WORKER_ENDS_S)
                self.assertGreater(seconds(unit["TimeoutStopSec"]), seconds(flags_of(unit["ExecStart"].split())[flag]) + more_s)

    def test_the_watchdog_waits_for_several_probes(self):
        probe = float(re.search(r"kProbeTimeout = absl::Seconds\((\d+)\)", read("coordinator", "main.cc")).group(1))
        beat = float(re.search(r"kLongestBeat = absl::Seconds\((\d+)\)", read("worker", "worker_main.cc")).group(1))
        for name in UNITS:
            unit = dict(settings(name))
            self.assertEqual((unit["Type"], unit["NotifyAccess"]), ("notify", "main"))
            # The process speaks three times per watchdog time; a slow probe or a late heartbeat must not end the process.
            self.assertGreater(seconds(unit["WatchdogSec"]) / 3, max(probe, beat))

    def test_only_the_coordinator_is_told_to_stop(self):
        self.assertEqual(dict(settings("somnus-coordinator.service"))["KillMode"], "process")

    def test_the_next_coordinator_finds_the_run_directory(self):
        unit = dict(settings("somnus-coordinator.service"))
        self.assertEqual((unit["RuntimeDirectoryMode"], unit["RuntimeDirectoryPreserve"]), ("0700", "restart"))
        path = "/run/" + unit["RuntimeDirectory"]
        self.assertIn(f" --run-dir={path}\n", read("tools", "deploy", "systemd", "README.md"))

    def test_a_restart_leaves_the_workers(self):
        unit = dict(settings("somnus-coordinator.service"))
        self.assertEqual((unit["RestartKillSignal"], unit.get("KillSignal")), ("SIGUSR1", None))
        self.assertIn("signal == SIGUSR1", read("coordinator", "main.cc"))

    def test_both_are_hardened_alike(self):
        def hardening(name):
            return {key: value for key, value in settings(name)
                    if re.match(r"Protect|Private|Restrict[A-Z]|NoNew|Capability|SystemCall|Lock|Limit|UMask|User|Group", key)}
        coordinator, worker = map(hardening, UNITS)
        self.assertEqual(coordinator, worker)
        self.assertEqual(coordinator["User"], "somnus")
        self.assertEqual(coordinator["NoNewPrivileges"], "yes")
        self.assertEqual(coordinator["CapabilityBoundingSet"], "")


@unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
class Analyze(unittest.TestCase):
    def setUp(self):
        """Copies whose program exists on every machine."""
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.copies = []
        for name in UNITS:
            with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
                text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", file.read())
            self.copies.append(os.path.join(self.folder, name.replace("@.", "@0.")))
            for path in {os.path.join(self.folder, name), self.copies[-1]}:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)

    def analyze(self, *args):
        return subprocess.run(["systemd-analyze", *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def test_systemd_takes_them(self):
        for copy in self.copies:
            done = self.analyze("verify", "--man=no", copy)
            complaints = [line for line in done.stderr.splitlines() if "somnus" in line]
            self.assertEqual((done.returncode, complaints), (0, []), done.stderr)

    def test_little_is_exposed(self):
        for copy in self.copies:
            done = self.analyze("security", "--offline=yes", "--no-pager", copy)
            if "offline" in done.stderr:
                self.skipTest("this systemd-analyze has no --offline")
            exposure = re.search(r"exposure level .*?: ([0-9.]+)", done.stdout)
            self.assertIsNotNone(exposure, done.stdout + done.stderr)
            self.assertLess(float(exposure.group(1)), MOST_EXPOSED)
