"""The application, assembled in one readable function."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import structlog
from quart import Blueprint, Quart

from cardcage.access import ACCESS_SCHEMA, AccessGuard, AccessPolicy, KeyRing, ListenerTable
from cardcage.http.errors import register_error_handlers
from cardcage.http.frame import RequestFrame
from cardcage.http.health import health_blueprint
from cardcage.http.limits import BodyLimit
from cardcage.http.ownership import PathOwners
from cardcage.http.uploads import UploadGate, UploadRequest
from cardcage.lifecycle import Lifecycle, ManagedService
from cardcage.loadable import option_problems
from cardcage.metrics import Metrics, ObservableService, RequestMeter, RouteNames, ServerState, metrics_blueprint
from cardcage.store import Store
from cardcage_sdk.errors import ConfigError, PluginContractError

if TYPE_CHECKING:
    from cardcage.config import Config
    from cardcage.http.asgi import AsgiApp
    from cardcage.plugins import DialectPlugin, PluginRegistry

__all__ = ["create_app", "lifecycle_of", "store_of"]

log = structlog.get_logger("cardcage.app")

EXTENSION = "cardcage"
STORE_EXTENSION = "cardcage.store"
QUIET_PATHS = ("/livez", "/readyz", "/health", "/metrics")


def create_app(
    config: Config,
    registry: PluginRegistry,
    service: ManagedService | None = None,
    *,
    listeners: ListenerTable | None = None,
) -> Quart:
    """Build the application. Nothing is started, opened or bound before it is served.

    Args:
        config: The configuration.
        registry: The plugins; a dialect that cannot give its routes is marked as failed in it.
        service: What the dialects are given; None makes the real one.
        listeners: The sockets that are bound for it. None, where someone else binds them, takes the configuration's
            `[[listen]]` as written; where it has none, every socket is served by the rules of a default one.

    Raises:
        ConfigError: A dialect refused its settings.
        PluginError: A required dialect could not give its routes.
    """
    if service is None:
        from cardcage.catalog import Catalog
        from cardcage.service import ModelService

        service = cast("ManagedService", ModelService(config=config, registry=registry, catalog=Catalog(config.store)))
    app = Quart("cardcage", static_folder=None)
    app.request_class = UploadRequest
    app.config.update(
        MAX_CONTENT_LENGTH=config.server.max_body_bytes,
        BODY_TIMEOUT=config.server.body_timeout_seconds,
        # Quart's 60 seconds would cut a long generation without an error; queues and watchdogs have their own limits.
        RESPONSE_TIMEOUT=None,
    )
    lifecycle = Lifecycle(config=config, service=service)
    app.extensions[EXTENSION] = lifecycle
    store = Store(config.data_dir, (ACCESS_SCHEMA,))
    app.extensions[STORE_EXTENSION] = store
    app.register_blueprint(health_blueprint(config=config, registry=registry, lifecycle=lifecycle))
    metrics = _metrics(service)
    app.register_blueprint(metrics_blueprint(metrics))
    for plugin in list(registry.dialects.values()):
        _mount(app, plugin, config=config, registry=registry, service=service)
    registry.check()
    for problem in option_problems(config, registry):
        raise ConfigError(problem)
    for name in {*config.platform_options} - {*registry.platforms}:
        log.warning("the configuration has a table for a platform that is not loaded", table=f"platforms.{name}")
    for name in {*config.dialect_settings} - {*registry.dialects}:
        log.warning("the configuration has a table for a dialect that is not loaded", table=f"dialects.{name}")
    for entry in config.listen:
        for name in {*(entry.dialects or ())} - {*registry.dialects}:
            log.warning("a socket is to serve a dialect that is not loaded", listen=entry.label, dialect=name)

    owners = PathOwners(plugin.dialect for plugin in registry.dialects.values())
    register_error_handlers(app, owners)
    app.before_serving(lifecycle.start)
    app.after_serving(lifecycle.shutdown)
    app.after_serving(store.close)

    uploads = UploadGate(cast("AsgiApp", app.asgi_app), owners=owners, limit_bytes=config.server.max_upload_bytes)
    limited = BodyLimit(
        uploads,
        owners=owners,
        limit_bytes=config.server.max_body_bytes,
        upload_limit_bytes=config.server.max_upload_bytes,
    )
    policy = AccessPolicy(
        dialects=[plugin.dialect for plugin in registry.dialects.values()],
        keys=KeyRing(store),
        security=config.security,
        listeners=listeners if listeners is not None else ListenerTable.of(config),
        accepts_other_sockets=listeners is None and not config.listen,
    )
    guarded = AccessGuard(limited, policy)
    metered = RequestMeter(guarded, metrics, RouteNames(app.url_map, owners))
    framed = RequestFrame(metered, quiet_paths=QUIET_PATHS)
    app.asgi_app = framed  # type: ignore[method-assign, assignment]  # the documented way to add ASGI middleware
    return app


def lifecycle_of(app: Quart) -> Lifecycle:
    """The life cycle of an application that `create_app` built."""
    return cast("Lifecycle", app.extensions[EXTENSION])


def store_of(app: Quart) -> Store:
    """The database of an application that `create_app` built."""
    return cast("Store", app.extensions[STORE_EXTENSION])


def _metrics(service: ManagedService) -> Metrics:
    """The metrics of one application; they stand apart, since a test may build many applications in one process."""
    metrics = Metrics()
    observable = service if isinstance(service, ObservableService) else None
    if observable is not None:
        observable.observe(metrics)
    metrics.add_state(
        ServerState(models=service.models, service=observable),
        loaded_models=lambda: [status.id for status in service.models()],
    )
    return metrics


def _mount(
    app: Quart, plugin: DialectPlugin, *, config: Config, registry: PluginRegistry, service: ManagedService
) -> None:
    """Add a dialect's routes; one that cannot give them is a recorded failure, like one that cannot be imported."""
    owners = PathOwners(other.dialect for other in registry.dialects.values())
    try:
        blueprint = _routes(plugin, owners, config=config, service=service)
    except ConfigError:
        raise
    except Exception as error:  # named boundary: a dialect's code may raise anything at start-up
        log.exception("a dialect cannot be served", dialect=plugin.name)
        registry.withdraw_dialect(
            plugin.name,
            state="refused" if isinstance(error, PluginContractError) else "failed",
            reason=f"blueprint() raised {type(error).__name__}: {error}",
            required=config.plugins.required,
        )
        return
    app.register_blueprint(blueprint, name=plugin.name)


def _routes(plugin: DialectPlugin, owners: PathOwners, *, config: Config, service: ManagedService) -> Blueprint:
    """A dialect's blueprint, after a check that every route lies under what it owns.

    Raises:
        PluginContractError: It is no blueprint, or a route lies elsewhere.
        Exception: Whatever the dialect raises.
    """
    blueprint = plugin.dialect.blueprint(service, config.dialect_settings.get(plugin.name, {}))
    if not isinstance(blueprint, Blueprint):
        raise PluginContractError(
            plugin.name, f"blueprint() returned {type(blueprint).__name__}, not a quart.Blueprint"
        )
    # On an application of its own, because a route cannot be taken away again.
    trial = Quart("trial", static_folder=None)
    trial.register_blueprint(blueprint, name=plugin.name)
    for rule in trial.url_map.iter_rules():
        if owners.owner(rule.rule) is not plugin.dialect:
            raise PluginContractError(plugin.name, f"route '{rule.rule}' lies outside the prefixes that it owns")
    return blueprint
