"""Draft heads: small trained modules on the hidden states of the target."""
