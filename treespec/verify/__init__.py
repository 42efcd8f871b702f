"""Verifiers: rules that decide which path of a tree the target accepts."""
