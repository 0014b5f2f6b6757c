"""runner: an SSH-driven, headless batch runner for deep-reinforcement-learning jobs on GPU hosts."""

__version__ = "0.1.0"
