"""Models on disk and pulls as clients see them. Pure."""

from collections.abc import Sequence
from typing import Any

from cardcage_dialect_openai.errors import encode_error
from cardcage_dialect_openai.wire.library import OfferObject, PullObject, RemoveAnswer, StoredModelObject, VariantObject
from cardcage_sdk.errors import CardcageError
from cardcage_sdk.library import PullProgress, StoredModel, VariantReport
from cardcage_sdk.sources import Offer

__all__ = [
    "encode_list",
    "encode_listed_pull",
    "encode_offer",
    "encode_offers",
    "encode_pull",
    "encode_removed",
    "encode_stored",
    "encode_variant",
]


def encode_list(items: Sequence[Any]) -> dict[str, Any]:
    """OpenAI's form of a list."""
    return {"object": "list", "data": list(items)}


def encode_stored(model: StoredModel) -> StoredModelObject:
    """A model in the store."""
    return {
        "id": model.id,
        "object": "stored_model",
        "name": model.name,
        "created": int(model.modified_at),
        "model_path": model.path,
        "size_bytes": model.size_bytes,
        "model_kind": model.kind,
        "platform": model.platform,
        "chips": list(model.chips),
        "license": model.license,
        "source": model.source,
        "digest": model.digest,
        "problem": model.problem,
    }


def encode_pull(pull: PullProgress) -> PullObject:
    """The state of a pull; how it failed is no part of it, but an error of its own."""
    return {
        "id": pull.id,
        "object": "pull",
        "model": pull.model,
        "status": pull.state,
        "source": pull.source,
        "completed_bytes": pull.completed_bytes,
        "total_bytes": pull.total_bytes,
        "files": [
            {
                "name": file.name,
                "completed_bytes": file.completed_bytes,
                "total_bytes": file.total_bytes,
                "done": file.is_done,
            }
            for file in pull.files
        ],
        "result": None if pull.result is None else encode_stored(pull.result),
        "fetched": pull.is_new,
    }


def encode_listed_pull(pull: PullProgress) -> dict[str, Any]:
    """The state of a pull in a list, where its error has no other place."""
    return {**encode_pull(pull), "error": None if pull.error is None else encode_error(pull.error)["error"]}


def encode_removed(name: str, removed: StoredModel | None) -> RemoveAnswer:
    """What a removal did."""
    what = f"model '{removed.id}' removed" if removed is not None else f"unfinished files of '{name}' removed"
    return {"success": True, "message": what, "removed": None if removed is None else encode_stored(removed)}


def encode_variant(report: VariantReport) -> VariantObject:
    """One form of a model."""
    return {
        "object": "variant",
        "source": report.source,
        "reference": report.reference,
        "label": report.label,
        "name": report.name,
        "size_bytes": report.size_bytes,
        "chips": list(report.chips),
        "platforms": list(report.platforms),
        "reason": report.reason,
        "files": list(report.files),
    }


def encode_offer(offer: Offer) -> OfferObject:
    """One model of a source's own list."""
    return {
        "object": "offer",
        "reference": offer.reference,
        "name": offer.name,
        "model_kind": offer.kind,
        "platform": offer.platform,
        "chips": list(offer.chips),
        "size_bytes": offer.size_bytes,
        "license": offer.license,
    }


def encode_offers(offers: Sequence[Offer], errors: Sequence[CardcageError]) -> dict[str, Any]:
    """What sources list, and why others do not."""
    failed = [encode_error(error)["error"] for error in errors]
    return {**encode_list([encode_offer(offer) for offer in offers]), "errors": failed}
