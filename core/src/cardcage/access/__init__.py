"""Who may call: keys, sockets, origins and hosts, as one policy over every route."""

from cardcage.access.guard import AccessGuard
from cardcage.access.keys import ACCESS_SCHEMA, KeyRecord, KeyRing, NewKey
from cardcage.access.listeners import Listener, ListenerTable, exposed
from cardcage.access.policy import AccessPolicy, Admission, admission_of

__all__ = [
    "ACCESS_SCHEMA",
    "AccessGuard",
    "AccessPolicy",
    "Admission",
    "KeyRecord",
    "KeyRing",
    "Listener",
    "ListenerTable",
    "NewKey",
    "admission_of",
    "exposed",
]
