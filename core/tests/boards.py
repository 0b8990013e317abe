"""A plugin file for tests of whole servers: the scripted and faulty platforms, and two dialects with a form of their own."""

from __future__ import annotations

import json

from quart import Blueprint, Response, jsonify, request, websocket

from cardcage_sdk import hookimpl
from cardcage_sdk.dialect import Dialect, Reply, Scope
from cardcage_sdk.errors import AuthenticationError, ForbiddenError, RouteNotFoundError
from cardcage_sdk.testing.platforms import FaultyBatchPlatform, FaultyPlatform, ScriptedBatchPlatform, ScriptedPlatform

STATUSES = {AuthenticationError: 401, ForbiddenError: 403, RouteNotFoundError: 404}


class ProbeDialect(Dialect):
    """Routes of every kind that the access policy tells apart."""

    name = "probe"
    prefixes = ("/probe",)
    open_paths = ("/probe/open", "/probe/deep/stolen", "/v1/models")
    any_origin_paths = ("/probe/any",)

    def required_scope(self, method, path):
        if path == "/probe/broken":
            raise RuntimeError("cannot say")
        if path.startswith("/probe/manage"):
            return Scope.MODELS_MANAGE
        return super().required_scope(method, path)

    def blueprint(self, service, settings):
        blueprint = Blueprint(f"{self.name}_routes", __name__)
        base = self.prefixes[0]

        @blueprint.get(f"{base}/open")
        async def is_open() -> Response:
            return jsonify(open=True)

        @blueprint.route(f"{base}/any", methods=["GET", "POST"])
        async def is_any() -> Response:
            return jsonify(origin="any")

        @blueprint.route(f"{base}/own", methods=["GET", "POST"])
        async def is_own() -> Response:
            return jsonify(query=request.query_string.decode(), args=request.args.to_dict())

        @blueprint.post(f"{base}/manage/<int:number>")
        async def manage(number: int) -> Response:
            return jsonify(number=number)

        @blueprint.get(f"{base}/broken")
        async def broken() -> Response:
            return jsonify(broken=True)

        @blueprint.websocket(f"{base}/socket")
        async def socket() -> None:
            await websocket.accept()
            await websocket.send(await websocket.receive())

        return blueprint

    def error_reply(self, error, path):
        status = next((number for cls, number in STATUSES.items() if isinstance(error, cls)), 500)
        body = {"form": self.name, "code": error.code, "message": error.message}
        return Reply(status=status, body=json.dumps(body).encode())


class DeepDialect(ProbeDialect):
    """Owns a longer prefix below the other's."""

    name = "deep"
    prefixes = ("/probe/deep",)
    open_paths = ()
    any_origin_paths = ()


@hookimpl
def register_platforms():
    return [ScriptedPlatform, ScriptedBatchPlatform, FaultyPlatform, FaultyBatchPlatform]


@hookimpl
def register_dialects():
    return [ProbeDialect, DeepDialect]
