"""How draft heads are trained on text that the target itself wrote."""
