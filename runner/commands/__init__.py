"""The commands, a module for each kind of work: options in, one use case called, status out."""
