"""Tests, and the rig they run on."""
