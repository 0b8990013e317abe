"""The API exactly as its clients see it; pydantic only."""
