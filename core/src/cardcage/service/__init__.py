"""What dialects ask of core: models, requests, platforms."""

from cardcage.service.service import ModelService

__all__ = ["ModelService"]
