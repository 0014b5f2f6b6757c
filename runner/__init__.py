"""runner: an SSH-driven, headless batch runner for DRL jobs on GPU hosts."""

__version__ = "0.1.0"
