"""Drafters: a smaller model, the text itself, the target's own recent guesses, and merges of them."""
