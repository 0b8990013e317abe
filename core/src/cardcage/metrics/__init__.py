"""`/metrics` in Prometheus form, on a registry of the application's own."""

from cardcage.metrics.http import RequestMeter, RouteNames, metrics_blueprint
from cardcage.metrics.instruments import Metrics
from cardcage.metrics.state import ObservableService, ServerState

__all__ = ["Metrics", "ObservableService", "RequestMeter", "RouteNames", "ServerState", "metrics_blueprint"]
