"""See the architecture."""
