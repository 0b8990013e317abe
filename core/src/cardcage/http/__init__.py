"""The HTTP layer that all dialects share: request ids, access log, origins, limits, errors, health."""
