"""The kit tells each lie apart, in words."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.models import LoadOptions, ModelArtifact
from cardcage_sdk.platform import MemoryEstimate, Platform, ProbeReport
from cardcage_sdk.testing import FaultyBatchPlatform, FaultyPlatform, ScriptedBatchPlatform, ScriptedPlatform
from cardcage_sdk.testing.conformance import CHECKS, ConformanceError, Subject, find_check
from cardcage_sdk.testing.launch import launch, model_artifact

SCRIPT = {
    "answers": [f"Story number {number}, which is long enough to be cut." for number in range(97)],
    "context_tokens": 512,
}


async def run_check(platform: Platform, directory: Path, name: str, **options: Any) -> None:
    path = directory / f"story{platform.suffix}"  # type: ignore[attr-defined]
    path.write_text(json.dumps(SCRIPT), encoding="utf-8")
    load_options = LoadOptions(slots=4, max_slots=4)
    async with launch(platform, path, options=options, load_options=load_options) as worker:
        subject = Subject(
            platform=platform,
            artifact=model_artifact(path),
            worker=worker,
            options=options,
            load_options=load_options,
            prompt="Tell me a story.",
        )
        await find_check(name).run(subject)


@pytest.mark.parametrize("platform", [ScriptedPlatform(), ScriptedBatchPlatform()], ids=lambda platform: platform.name)
@pytest.mark.parametrize(
    ("ignored", "check", "words"),
    [
        ("logprobs", "logprobs", "logprobs are declared and asked for, and none came"),
        ("logit_bias", "logit_bias", "has logit_bias -100 and was chosen all the same"),
        ("seed", "seed", "is declared and gave two texts"),
        ("json_object", "json_object", "response_format json_object gave 'Story number 0"),
        ("json_schema", "json_schema", "which is no JSON"),
        ("schema_errors", "bad_schema", "takes a schema whose type does not exist"),
        ("tool_choice", "required_tool", "gave no call, but the text 'Story number 0"),
        ("tool_choice", "named_tool", "the named tool 'set_lamp' gave no call"),
        ("max_tokens", "max_tokens", "max_tokens 2 gave 10 tokens"),
        ("context", "context_overflow", "takes a prompt of more than 512 tokens"),
        ("context", "long_input", "was taken without truncate"),
        ("normalize", "vectors", "the normalised vector of"),
        ("order", "batch_equals_single", "alone and in a batch have cosine"),
        ("dimensions", "dimensions", "8 dimensions were asked for, 16 came"),
        ("thinking", "thinking", "enable_thinking is False, and it thought"),
    ],
)
async def test_a_request_field_that_is_declared_and_ignored(
    platform: Platform, tmp_path: Path, ignored: str, check: str, words: str
) -> None:
    options = {"reasoning": "Hm."} if ignored == "thinking" else {}
    with pytest.raises(ConformanceError) as caught:
        await run_check(platform, tmp_path, check, ignores=[ignored], **options)
    assert words in str(caught.value)


async def test_choices_that_never_come(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="ended its answer without Finished"):
        await run_check(ScriptedPlatform(), tmp_path, "choices", ignores=["n"])


async def test_a_cancel_that_is_not_heard(tmp_path: Path) -> None:
    with pytest.raises(
        ConformanceError, match=r"before the first token, the request still runs after .* cancel_seconds"
    ):
        async with asyncio.timeout(30):
            await run_check(
                ScriptedPlatform(), tmp_path, "leaving_in_prefill", ignores=["cancel"], prefill_seconds=600.0
            )


@pytest.mark.parametrize("platform", [FaultyPlatform(), FaultyBatchPlatform()], ids=lambda platform: platform.name)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("lie_parsed", "The engine declares raw output but yielded TextDelta"),
        ("lie_choice", "The engine yielded Text of choice 99, of 1 choices"),
        ("exception", "RuntimeError: this engine was told to raise"),
    ],
)
async def test_an_output_that_breaks_the_contract(platform: Platform, tmp_path: Path, kind: str, words: str) -> None:
    with pytest.raises(Exception) as caught:
        await run_check(platform, tmp_path, "answer", kind=kind)
    assert words in str(caught.value)


@pytest.mark.parametrize("platform", [FaultyPlatform(), FaultyBatchPlatform()], ids=lambda platform: platform.name)
async def test_an_output_after_the_end_is_noted(platform: Platform, tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match=r"the worker noted: .*contract breach"):
        await run_after_answer(platform, tmp_path)


async def run_after_answer(platform: Platform, directory: Path) -> None:
    path = directory / f"story{platform.suffix}"  # type: ignore[attr-defined]
    path.write_text(json.dumps({**SCRIPT, "kind": "lie_after_finished"}), encoding="utf-8")
    async with launch(platform, path, load_options=LoadOptions(slots=2, max_slots=2)) as worker:
        subject = Subject(
            platform=platform,
            artifact=model_artifact(path),
            worker=worker,
            options={},
            load_options=LoadOptions(),
            prompt="Tell me a story.",
        )
        # In a step loop the lie comes with the next step, which needs another request.
        await asyncio.gather(subject.chat(subject.request(max_tokens=2)), subject.chat(subject.request()))
        await find_check("no_breach").run(subject)


class ClaimsAll(ScriptedPlatform):
    def claims(self, artifact: ModelArtifact) -> bool:
        return True


class ClaimsNothing(ScriptedPlatform):
    def claims(self, artifact: ModelArtifact) -> bool:
        return False


class NoReason(ScriptedPlatform):
    def probe(self) -> ProbeReport:
        return ProbeReport.unavailable("")


class Negative(ScriptedPlatform):
    def estimate(self, artifact: ModelArtifact, options: Any) -> MemoryEstimate:
        return MemoryEstimate(device_bytes=-1, host_bytes=5)


class LoudName(ScriptedPlatform):
    name = "Loud Name"


@pytest.mark.parametrize(
    ("platform", "check", "words"),
    [
        (ClaimsAll(), "claims", "which is no model"),
        (ClaimsNothing(), "claims", "does not take the model that it runs"),
        (NoReason(), "probe", "without a reason"),
        (Negative(), "estimate", "negative number"),
        (LoudName(), "names", "must be lower-case"),
    ],
)
async def test_a_declaration_that_is_wrong(platform: Platform, tmp_path: Path, check: str, words: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        await run_check(platform, tmp_path, check)
    assert words in str(caught.value)


def test_every_check_says_what_it_is_about() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert names[-1] == "close", "the check that ends the worker has to be the last"
    for check in CHECKS:
        assert check.summary.endswith("."), check.name


def test_capabilities_refuse_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown sampling parameters: sharpness"):
        Capabilities(tasks=frozenset({"chat"}), sampling=frozenset({"sharpness"}))  # type: ignore[arg-type]
