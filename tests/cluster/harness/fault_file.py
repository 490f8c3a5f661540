"""The file that tells tests/worker:faulty_worker how to fail (tests/worker/moments.h has the moments)."""
import itertools
import os
import tempfile

from cluster.harness import BIN, wait_until

WORKER = os.path.join(BIN, "tests", "worker", "faulty_worker")
STRIKE_S = 60


class FaultFile:
    def __init__(self):
        self._file = tempfile.NamedTemporaryFile("w", prefix="somnus_faults_", encoding="ascii")
        self._struck = self._file.name + ".struck"
        self._numbers = itertools.count()
        self.environment = {"SOMNUS_FAULTS": self._file.name}

    def set(self, faults):
        # A worker that reads at the same time sees what was there or what is new, and never nothing.
        new = self._file.name + ".new"
        with open(new, "w", encoding="ascii") as file:
            file.write(faults + "\n")
        os.replace(new, self._file.name)

    def set_moment(self, moment, action, times=1):
        """The only fault from now on: `action` ("kill@1") at `moment` ("Prepare:done", "map#2"). Returns its line."""
        return self.set_moments((moment, action), times=times)[0]

    def set_moments(self, *faults, times=1):
        """As set_moment, for several (moment, action) together. Returns the lines."""
        lines = [f"at {moment} {action} {times} {next(self._numbers)}" for moment, action in faults]
        self.set("\n".join(lines))
        return lines

    def strikes(self, line):
        """How often the fault of this line has struck."""
        try:
            with open(self._struck, encoding="ascii") as file:
                return file.read().splitlines().count(line)
        except FileNotFoundError:
            return 0

    def wait_for(self, line):
        wait_until(lambda: self.strikes(line), STRIKE_S, f"'{line}' strikes", poll=0.005)

    def close(self):
        self._file.close()
        if os.path.exists(self._struck):
            os.remove(self._struck)
