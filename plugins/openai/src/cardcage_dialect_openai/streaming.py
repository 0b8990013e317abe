"""Streams: the service's events on one side, the bytes of a response body on the other. The sdk has them for all dialects."""

from cardcage_sdk.stream.pump import END, SILENCE, EventPump, Marker, OwnedBody

__all__ = ["END", "SILENCE", "EventPump", "Marker", "OwnedBody"]
