"""A dialect that takes files: what it did not ask for must not pile up in the server."""

import json
import resource

from quart import Blueprint, request

from cardcage_sdk import hookimpl
from cardcage_sdk.dialect import Dialect, Reply


class TakesDialect(Dialect):
    name = "takes"
    prefixes = ("/takes",)
    upload_paths = ("/takes/file",)
    allowed_origins = ("app://*",)

    def blueprint(self, service, settings):
        blueprint = Blueprint("takes", __name__)

        @blueprint.post("/takes/file/<name>")
        async def take(name):
            size = largest = 0
            async for chunk in request.body:
                size += len(chunk)
                largest = max(largest, len(chunk))
            return {"name": name, "bytes": size, "largest": largest}

        @blueprint.post("/takes/nothing")
        async def whole():
            return {"bytes": len(await request.get_data())}

        @blueprint.get("/takes/memory")
        async def memory():
            return {"peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}

        return blueprint

    def error_reply(self, error, path):
        body = {"takes": error.code, "message": error.message}
        return Reply(status=413 if error.code == "payload_too_large" else 403, body=json.dumps(body).encode())


@hookimpl
def register_dialects():
    return [TakesDialect]
