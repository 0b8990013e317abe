"""Events to bytes: `sse` for server-sent events, `ndjson` for one JSON value a line. Pure; a dialect writes what they return."""
