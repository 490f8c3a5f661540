"""The tests of kernels, which share a process."""
import programs


def run(kit):
    programs.run(kit, "kernels")
