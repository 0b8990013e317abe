"""Sources of models. Each module with a `register_sources` hook is a plugin; the others are what they share."""
