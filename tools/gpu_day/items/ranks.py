"""Collectives of several ranks and processes that share the GPU."""
import programs


def run(kit):
    programs.run(kit, "ranks")
