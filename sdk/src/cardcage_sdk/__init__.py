"""The contract of Cardcage: what the author of a platform or a dialect imports, and nothing else.

Importing this package costs no pydantic and no web framework, so that a worker stays small.
"""

from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
from cardcage_sdk.engine import BatchEngine, Engine
from cardcage_sdk.events import Accepted, EngineOutput, Failed, Finished, Text, Usage
from cardcage_sdk.hookspecs import CONTRACT_VERSION, hookimpl
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo
from cardcage_sdk.platform import Device, MemoryEstimate, Platform, ProbeReport, Scaling

__all__ = [
    "CONTRACT_VERSION",
    "Accepted",
    "BatchEngine",
    "Capabilities",
    "ChatRequest",
    "Device",
    "EmbedRequest",
    "EmbedResult",
    "Engine",
    "EngineOutput",
    "Failed",
    "Feature",
    "Finished",
    "LoadOptions",
    "MemoryEstimate",
    "Message",
    "ModelArtifact",
    "ModelInfo",
    "Platform",
    "ProbeReport",
    "RerankRequest",
    "RerankResult",
    "Sampling",
    "Scaling",
    "Task",
    "Text",
    "TextPart",
    "Usage",
    "hookimpl",
]
