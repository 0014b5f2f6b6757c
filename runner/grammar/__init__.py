"""What may be typed and written in job files, and what it means: pure, but for reading secrets."""
