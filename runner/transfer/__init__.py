"""Snapshots up, artifacts down, over conversations with a worker."""
