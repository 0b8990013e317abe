"""The routes: read a body, decode it, ask the service, encode the answer."""

from quart import Blueprint

from cardcage_dialect_ollama.routes.blobs import add_blob_routes
from cardcage_dialect_ollama.routes.chat import add_chat_route
from cardcage_dialect_ollama.routes.create import add_create_routes
from cardcage_dialect_ollama.routes.embeddings import add_embedding_routes
from cardcage_dialect_ollama.routes.generate import add_generate_route
from cardcage_dialect_ollama.routes.models import add_model_routes
from cardcage_dialect_ollama.routes.server import add_server_routes
from cardcage_dialect_ollama.routes.transfers import add_transfer_routes
from cardcage_dialect_ollama.settings import Settings
from cardcage_sdk.service import Service

__all__ = ["build_blueprint"]


def build_blueprint(service: Service, settings: Settings) -> Blueprint:
    """All routes of the dialect. Their errors go to core, which has `OllamaDialect.error_reply` render them."""
    blueprint = Blueprint("ollama", __name__)
    add_server_routes(blueprint, settings)
    add_generate_route(blueprint, service, settings)
    add_chat_route(blueprint, service, settings)
    add_embedding_routes(blueprint, service, settings)
    add_model_routes(blueprint, service, settings)
    add_create_routes(blueprint, service, settings)
    add_blob_routes(blueprint, service)
    add_transfer_routes(blueprint, service)
    return blueprint
