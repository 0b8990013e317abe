"""The worker process: one engine, one model, one pipe to the server.

Started as `python -P -m cardcage_sdk.worker --fd N` by the server, which passes one end of a socket pair as descriptor N, puts
the process into a session of its own, gives it /dev/null as standard input and a log pipe as descriptors 1 and 2.

Threads: the main thread runs the one loop (`loop`) and, for a `BatchEngine`, every call of the engine; the reader thread
(`link`) reads frames, answers pings, and ends the process when the pipe ends; an `Engine` is called on threads of their own
(`calls`).
"""
