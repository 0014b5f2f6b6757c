"""Use cases: one module each; `results` holds the values they return."""
