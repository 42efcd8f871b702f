"""Token trees: topology, tokens, static shapes, growing, merging, rendering."""
