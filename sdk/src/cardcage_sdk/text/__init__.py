"""From what a runtime produces to what a client reads.

`pipeline` turns raw pieces into events, through `utf8`, `stops`, `reasoning` and `toolcalls`; `template` renders conversations
to prompts and needs the extra `cardcage-sdk[text]`; `grammar` holds the schemas of forced tool calls. Everything here is pure
and runs in the worker.
"""
