"""Small helpers that several tests use."""
