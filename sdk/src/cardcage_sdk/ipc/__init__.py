"""The boundary between server and worker: frames on a socket pair.

`frames` is the vocabulary, `codec` turns neutral values into msgpack and back, `client` is the server's end (asyncio). The
worker's end is `cardcage_sdk.worker`.
"""
