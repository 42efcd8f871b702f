"""The tests; folders mirror the packages."""
