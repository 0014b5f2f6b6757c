"""Runs beside each other: their groups, their scores, and what these say (pure)."""
