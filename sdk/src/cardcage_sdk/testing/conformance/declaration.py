"""Checks of what a platform says of itself; no engine is asked anything."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from cardcage_sdk.capabilities import Feature, Task, check_chat
from cardcage_sdk.chat import (
    AudioPart,
    ChatRequest,
    ImagePart,
    Message,
    ResponseFormat,
    Sampling,
    ToolChoice,
    ToolSpec,
)
from cardcage_sdk.errors import InvalidOptionError, UnsupportedError
from cardcage_sdk.options import validate_options
from cardcage_sdk.platform import MemoryEstimate, ProbeReport
from cardcage_sdk.testing.conformance.subject import DoesNotApplyError, Subject, expect
from cardcage_sdk.testing.launch import engine_target, model_artifact

__all__ = ["CHECKS"]

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_ENGINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ALLOWED_IMPORTS = {
    "cardcage_sdk", "pluggy", "msgpack", "pydantic", "pydantic_core", "typing_extensions", "annotated_types",
    "typing_inspection",
}  # fmt: skip
_TOOL = ToolSpec(name="look", parameters={"type": "object"})

_UNDECLARED: dict[Feature, ChatRequest] = {
    Feature.CHOICES: ChatRequest(id="u", model="m", n=2),
    Feature.LOGPROBS: ChatRequest(id="u", model="m", logprobs=1),
    Feature.LOGIT_BIAS: ChatRequest(id="u", model="m", sampling=Sampling(logit_bias={1: 1.0})),
    Feature.SEED: ChatRequest(id="u", model="m", sampling=Sampling(seed=1)),
    Feature.JSON_OBJECT: ChatRequest(id="u", model="m", response_format=ResponseFormat(kind="json_object")),
    Feature.JSON_SCHEMA: ChatRequest(id="u", model="m", response_format=ResponseFormat(kind="json_schema", schema={})),
    Feature.GRAMMAR: ChatRequest(
        id="u", model="m", response_format=ResponseFormat(kind="grammar", grammar="root ::= x")
    ),
    Feature.TOOLS: ChatRequest(id="u", model="m", tools=(_TOOL,)),
    Feature.FORCED_TOOLS: ChatRequest(id="u", model="m", tools=(_TOOL,), tool_choice=ToolChoice(mode="required")),
    Feature.IMAGES: ChatRequest(id="u", model="m", messages=(Message(role="user", content=(ImagePart(data=b"x"),)),)),
    Feature.AUDIO: ChatRequest(
        id="u", model="m", messages=(Message(role="user", content=(AudioPart(data=b"x", format="wav"),)),)
    ),
    Feature.RAW_PROMPT: ChatRequest(id="u", model="m", prompt="x"),
    Feature.TOKEN_PROMPT: ChatRequest(id="u", model="m", prompt=(1,)),
    Feature.SUFFIX: ChatRequest(id="u", model="m", prompt="x", suffix="y"),
    Feature.THINKING: ChatRequest(id="u", model="m", enable_thinking=True),
}


async def check_names(subject: Subject) -> None:
    """Name and engine are of the form that configuration, URLs and workers need."""
    platform = subject.platform
    expect(_NAME.fullmatch(platform.name), f"name '{platform.name}' must be lower-case letters, digits and hyphens")
    expect(_ENGINE.fullmatch(platform.engine), f"engine '{platform.engine}' must be 'package.module:Class'")
    expect(platform.capabilities.tasks, "capabilities declare no task")
    expect(platform.capabilities.cancel_seconds > 0, "cancel_seconds must be above 0")


async def check_probe(subject: Subject) -> None:
    """probe() answers without raising, with a reason where it says no, and the same twice."""
    report = subject.platform.probe()
    expect(isinstance(report, ProbeReport), f"probe() must return a ProbeReport, not {type(report).__name__}")
    expect(report.is_available or report.reason.strip(), "probe() says 'not available' without a reason")
    expect(not (report.is_available and report.reason), f"probe() says 'available' and gives a reason: {report.reason}")
    expect(report.is_available, f"this model was loaded although probe() says: {report.reason}")
    expect(subject.platform.probe() == report, "two probes in a row differ; nothing may change by looking")


async def check_claims(subject: Subject) -> None:
    """claims() takes this model and neither an empty directory nor a file of another kind."""
    platform = subject.platform
    expect(platform.claims(replace(subject.artifact, platform=None)), "claims() does not take the model that it runs")
    with tempfile.TemporaryDirectory() as directory:
        foreign = Path(directory) / "notes.txt"
        foreign.write_text("no model")
        for path in (Path(directory), foreign):
            expect(not platform.claims(model_artifact(path)), f"claims() takes '{path.name}', which is no model")


async def check_estimate(subject: Subject) -> None:
    """estimate() gives bytes that are not negative and not all zero."""
    estimate = subject.platform.estimate(subject.artifact, dict(subject.options))
    expect(isinstance(estimate, MemoryEstimate), f"estimate() must return a MemoryEstimate, not {estimate!r}")
    expect(min(estimate.device_bytes, estimate.host_bytes) >= 0, f"estimate() gives a negative number: {estimate}")
    expect(estimate.device_bytes + estimate.host_bytes > 0, "estimate() says that the model takes no memory at all")


async def check_options(subject: Subject) -> None:
    """An option that does not exist is refused by name."""
    try:
        validate_options(subject.platform, {"no_such_option": 1})
    except InvalidOptionError as error:
        expect("no_such_option" in error.message, f"the refusal does not name the option: {error.message}")
    else:
        expect(False, "an option that does not exist was taken: option_model must forbid unknown names")


async def check_imports(subject: Subject) -> None:
    """Importing the platform's module imports no native runtime: that is for the worker."""
    module = type(subject.platform).__module__
    if (
        engine_target(subject.platform).plugin_file is not None
        or module.startswith(("test_", "tests."))
        or module == "__main__"
    ):
        raise DoesNotApplyError("the platform is defined in a test file or a script, not in a package")
    code = (
        "import importlib, json, sys; importlib.import_module(sys.argv[1]); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-P", "-c", code, module], capture_output=True, text=True, check=False
    )
    if run.returncode and "ModuleNotFoundError" in run.stderr and module in run.stderr:
        raise DoesNotApplyError(f"'{module}' is not installed")
    expect(run.returncode == 0, f"importing '{module}' alone fails: {run.stderr.strip()[-500:]}")
    loaded = set(json.loads(run.stdout.splitlines()[-1]))
    strangers = {
        name
        for name in loaded - set(sys.stdlib_module_names) - _ALLOWED_IMPORTS - {module.partition(".")[0], "__main__"}
        if not name.startswith(("_", "sitecustomize", "cython_runtime", "distutils-precedence"))
    }
    expect(
        not strangers,
        f"importing '{module}' imports {', '.join(sorted(strangers))}: the engine's imports belong into the worker",
    )


async def check_undeclared_features(subject: Subject) -> None:
    """What is not declared is refused with an error that names it, before anything is queued."""
    capabilities = subject.capabilities
    for feature, request in _UNDECLARED.items():
        if feature in capabilities.features:
            continue
        try:
            check_chat(request, capabilities)
        except UnsupportedError as error:
            expect(error.param, f"the refusal of '{feature.value}' names no field")
        else:
            expect(False, f"'{feature.value}' is not declared and yet not refused")


async def check_features_belong_together(subject: Subject) -> None:
    """Features that need each other are declared together."""
    capabilities = subject.capabilities
    features = capabilities.features
    expect(Feature.FORCED_TOOLS not in features or Feature.TOOLS in features, "tool_choice is declared without tools")
    expect(
        Feature.TOKEN_PROMPT not in features or Feature.RAW_PROMPT in features,
        "prompts of token ids are declared without prompts of text",
    )
    expect(
        (capabilities.max_choices > 1) == (Feature.CHOICES in features),
        f"max_choices is {capabilities.max_choices}, but n is {'' if Feature.CHOICES in features else 'not '}declared",
    )
    expect(
        Feature.TOOLS not in features or Task.CHAT not in capabilities.tasks or capabilities.output == "parsed"
        or subject.info.tool_format is not None,
        "tools are declared, but the loaded model has no tool_format",
    )  # fmt: skip


CHECKS = [
    check_names,
    check_probe,
    check_claims,
    check_estimate,
    check_options,
    check_imports,
    check_undeclared_features,
    check_features_belong_together,
]
