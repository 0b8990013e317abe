"""The models on disk."""

from cardcage.catalog.catalog import Catalog, CatalogProblem
from cardcage.names import check_model_id, default_model_id

__all__ = ["Catalog", "CatalogProblem", "check_model_id", "default_model_id"]
