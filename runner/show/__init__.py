"""How things look on a screen and in JSON: pure, but for drawing a PNG."""
