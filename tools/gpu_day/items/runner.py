"""The tests of the runner, with everything under it."""
import programs


def run(kit):
    programs.run(kit, "runner")
