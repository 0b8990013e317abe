"""Structural check of a client's JSON Schema, before anything compiles it. The sdk has it for all dialects."""

from cardcage_sdk.client_json import MAX_DEPTH, MAX_NODES, check_schema

__all__ = ["MAX_DEPTH", "MAX_NODES", "check_schema"]
