"""Tests that count the device's memory, share it with another process, swap, or measure."""
import programs


def run(kit):
    programs.run(kit, "memory")
