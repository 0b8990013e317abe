"""The routes: read a body, decode it, ask the service, encode the answer."""

from quart import Blueprint

from cardcage_dialect_openai.routes.chat import add_chat_routes
from cardcage_dialect_openai.routes.completions import add_completion_routes
from cardcage_dialect_openai.routes.library import add_library_routes
from cardcage_dialect_openai.routes.models import add_model_routes
from cardcage_dialect_openai.routes.platforms import add_platform_routes
from cardcage_dialect_openai.routes.vectors import add_vector_routes
from cardcage_dialect_openai.settings import Settings
from cardcage_sdk.service import Service

__all__ = ["build_blueprint"]


def build_blueprint(service: Service, settings: Settings) -> Blueprint:
    """All routes of the dialect. Their errors go to core, which has `OpenAIDialect.error_reply` render them."""
    blueprint = Blueprint("openai", __name__)
    add_chat_routes(blueprint, service, settings)
    add_completion_routes(blueprint, service, settings)
    add_vector_routes(blueprint, service, settings)
    add_model_routes(blueprint, service, settings)
    add_library_routes(blueprint, service, settings)
    add_platform_routes(blueprint, service)
    return blueprint
