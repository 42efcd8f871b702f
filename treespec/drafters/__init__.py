"""Drafters: a smaller model, the text, the target's own recent guesses, and merges of them."""
