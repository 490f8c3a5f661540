"""Drives a Somnus server over gRPC. README.md has examples."""
from somnus.client import Client, Completion

__all__ = ["Client", "Completion"]
