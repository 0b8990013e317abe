"""`/livez` and `/readyz`: does the process answer, and can it serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quart import Blueprint, Response, jsonify, request

from cardcage.access.policy import admission_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage.config import Config
    from cardcage.lifecycle import Lifecycle, ManagedService
    from cardcage.plugins import PluginRegistry
    from cardcage_sdk.service import ModelStatus, PlatformStatus

__all__ = ["health_blueprint", "reasons_not_ready"]


def health_blueprint(*, config: Config, registry: PluginRegistry, lifecycle: Lifecycle) -> Blueprint:
    """Core's own routes."""
    blueprint = Blueprint("cardcage_core", __name__)
    service: ManagedService = lifecycle.service

    @blueprint.get("/livez")
    async def livez() -> Response:
        return Response("ok\n", content_type="text/plain; charset=utf-8")

    @blueprint.get("/readyz")
    async def readyz() -> tuple[Response, int]:
        models = service.models()
        platforms = await service.platforms()
        records = registry.records
        reasons = reasons_not_ready(
            is_draining=lifecycle.is_draining,
            dialects=tuple(registry.dialects),
            configured=tuple(entry.model_id for entry in config.models),
            models=models,
            platforms=platforms,
        )
        is_trusted = admission_of(request.scope).is_trusted
        if not is_trusted:
            # The path is open so that supervisors need no key; what is loaded from where is nobody else's business.
            models, platforms, records = (), (), ()
            reasons = reasons and ["not ready; the reasons need a key"]
        body: dict[str, Any] = {
            "details": is_trusted,
            "ready": not reasons,
            "reasons": reasons,
            "draining": lifecycle.is_draining,
            "models": [_model(status) for status in models],
            "platforms": [
                {"id": status.id, "available": status.available, "reason": status.reason} for status in platforms
            ],
            "plugins": [
                {
                    "name": record.name,
                    "kind": record.kind,
                    "distribution": record.distribution,
                    "version": record.version,
                    "state": record.state,
                    "reason": record.reason,
                }
                for record in records
            ],
        }
        return jsonify(body), 503 if reasons else 200

    return blueprint


def reasons_not_ready(
    *,
    is_draining: bool,
    dialects: Sequence[str],
    configured: Sequence[str],
    models: Sequence[ModelStatus],
    platforms: Sequence[PlatformStatus],
) -> list[str]:
    """Why no request should be sent here now; empty means ready.

    A server whose configuration names models is ready when one of them serves: before that every request would wait or
    fail. One whose configuration names none is ready as soon as a model could be loaded, because loading is then the
    client's first request.
    """
    if is_draining:
        return ["the server is shutting down"]
    reasons: list[str] = []
    if not dialects:
        reasons.append("no dialect is loaded, so there is no API")
    if any(status.state == "ready" and status.instance_count > 0 for status in models):
        return reasons
    if configured:
        by_id = {status.id: status.state for status in models}
        states = ", ".join(f"{model_id}: {by_id.get(model_id, 'not loaded')}" for model_id in configured)
        reasons.append(f"no configured model is ready ({states})")
    elif not any(status.available for status in platforms):
        why = "; ".join(f"{status.id}: {status.reason}" for status in platforms) or "none is installed"
        reasons.append(f"no platform is available here ({why})")
    return reasons


def _model(status: ModelStatus) -> dict[str, Any]:
    return {
        "id": status.id,
        "name": status.name,
        "path": status.path,
        "kind": status.kind,
        "platform": status.platform,
        "state": status.state,
        "instances": status.instance_count,
        "requested_instances": status.requested_instance_count,
        "running": status.running,
        "queued": status.queued,
        "pinned": status.pinned,
        "loaded_at": status.loaded_at,
    }
