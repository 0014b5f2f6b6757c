"""The project folder as a snapshot: what travels, what is left out, and by which rule."""
