"""The API exactly as clients see it: pydantic models of requests, typed dictionaries of answers."""
