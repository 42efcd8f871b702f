"""Tree-attention speculative decoding for any transformers causal LM, without changing a token."""
