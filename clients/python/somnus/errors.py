"""Errors of an engine that runs in child processes."""


class EngineStartError(RuntimeError):
    """The engine has not begun to serve. The message ends with the last lines of the engine's log."""


class EngineDeadError(RuntimeError):
    """The engine has ended, or has been shut down. The message ends with the last lines of the engine's log."""
