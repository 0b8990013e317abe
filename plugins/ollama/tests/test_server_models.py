"""Loading on demand, letting go, contexts, prompts that are too long, and listings, on a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from ollama_serving import Server, serve

SAID = [{"role": "user", "content": "hi"}]


def loaded(server: Server) -> list[str]:
    return [model["model"] for model in server.get("/api/ps").json()["models"]]


@pytest.mark.parametrize("keep_alive", [0, "0", "0s"])
def test_a_model_goes_after_a_request_that_keeps_it_for_nothing(server: Server, keep_alive: object) -> None:
    name = server.add(answer="brief")
    answer = server.post("/api/generate", {"model": name, "prompt": "x", "keep_alive": keep_alive, "stream": False})
    assert answer.json()["response"] == "brief"
    server.until(lambda: name not in loaded(server))


@pytest.mark.parametrize("keep_alive", [-1, "-1m", "-1"])
def test_a_model_may_stay_for_ever(server: Server, keep_alive: object) -> None:
    name = server.add()
    server.post("/api/generate", {"model": name, "keep_alive": keep_alive})
    (entry,) = [model for model in server.get("/api/ps").json()["models"] if model["model"] == name]
    assert int(entry["expires_at"][:4]) > 2200
    assert server.get("/api/ps").json()["models"][0]["model"] in loaded(server)
    assert server.post("/api/chat", {"model": name, "keep_alive": 0}).json()["done_reason"] == "unload"
    assert name not in loaded(server)


def test_a_pinned_model_stays_whatever_a_client_says(server: Server) -> None:
    name = server.add(answer="pinned")
    server.post("/v1/models/load", {"model_id": f"{name}@scripted-cpu", "model_path": str(server.folder(name))})
    assert server.post("/api/generate", {"model": name, "keep_alive": 0}).json()["done_reason"] == "unload"
    server.post("/api/generate", {"model": name, "prompt": "x", "keep_alive": 0, "stream": False})
    assert name in loaded(server)
    assert server.post("/api/delete", {}).status_code == 405
    server.post("/v1/models/unload", {"model_id": f"{name}@scripted-cpu"})


def test_a_model_that_was_loaded_from_elsewhere_is_listed_and_answers(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "else.scripted.json"
    file.write_text('{"answer": "from elsewhere"}')
    assert server.post("/v1/models/load", {"model_id": "mine", "model_path": str(file)}).status_code == 200
    try:
        assert "mine:latest" in [model["name"] for model in server.get("/api/tags").json()["models"]]
        assert "mine:latest" in loaded(server)
        for name in ("mine", "Mine:latest"):
            answer = server.post("/api/generate", {"model": name, "prompt": "x", "stream": False})
            assert answer.json()["response"] == "from elsewhere"
        assert server.post("/api/show", {"model": "mine"}).json()["capabilities"][0] == "completion"
        larger = {"model": "mine", "prompt": "x", "options": {"num_ctx": 9999}}
        refused = server.post("/api/generate", larger)
        assert (refused.status_code, "another context" in refused.json()["error"]) == (400, True)
    finally:
        server.post("/v1/models/unload", {"model_id": "mine", "force": True})


def test_contexts(server: Server) -> None:
    name = server.add(answer="x")

    def run(num_ctx: int | None) -> set[int]:
        body = {"model": name, "messages": SAID, "options": {"num_ctx": num_ctx}, "stream": False}
        assert server.post("/api/chat", body).status_code == 200
        entries = server.get("/api/ps").json()["models"]
        return {entry["context_length"] for entry in entries if entry["model"] == name}

    assert run(None) == {4096}
    assert run(2048) == {4096}
    assert run(8192) == {4096, 8192}
    server.post("/api/generate", {"model": name, "keep_alive": 0})
    assert name not in loaded(server)
    assert run(2048) == {2048}
    assert run(None) == {2048}


@pytest.mark.parametrize(("policy", "status", "contexts"), [("exact", 200, {4096, 2048}), ("refuse", 200, {4096})])
def test_contexts_by_policy(tmp_path: Path, policy: str, status: int, contexts: set[int]) -> None:
    with serve(tmp_path, f'num_ctx = "{policy}"') as started:
        name = started.add(answer="x")
        for num_ctx in (4096, 2048):
            body = {"model": name, "messages": SAID, "options": {"num_ctx": num_ctx}, "stream": False}
            assert started.post("/api/chat", body).status_code == status
        assert {entry["context_length"] for entry in started.get("/api/ps").json()["models"]} == contexts
        if policy == "refuse":
            body = {"model": name, "messages": SAID, "options": {"num_ctx": 8192}}
            assert "has a context of 4096 tokens here" in started.post("/api/chat", body).json()["error"]


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(server: Server) -> None:
    # 4 tokens a message, and one for each word with the blanks before it.
    name = server.add(echo=True, context_tokens=40)
    turns = [{"role": "system", "content": "s"}]
    turns += [{"role": role, "content": "a b c d e f"} for _ in range(6) for role in ("user", "assistant")]
    turns += [{"role": "user", "content": "last words"}]
    answer = server.post("/api/chat", {"model": name, "messages": turns, "stream": False}).json()
    assert answer["message"]["content"] == "last words"
    # The system message (5), the last turn (6) and as many of the others (10 each) as fit.
    assert answer["prompt_eval_count"] == 5 + 6 + 2 * 10


def test_a_text_that_is_too_long_loses_its_middle(server: Server) -> None:
    name = server.add(echo=True, context_tokens=100)
    text = " ".join(f"w{number:03}" for number in range(400))
    for body in ({"prompt": text}, {"prompt": text, "raw": True}):
        answer = server.post(
            "/api/generate", {"model": name, **body, "stream": False, "options": {"num_keep": 4}}
        ).json()
        assert 30 < answer["prompt_eval_count"] <= 100 - (100 - 4) // 2
    whole = server.post(
        "/api/generate", {"model": name, "prompt": text, "stream": False, "options": {"num_predict": 100}}
    )
    said = whole.json()["response"].split()
    assert said[0] == "w000"
    assert whole.json()["done_reason"] in {"stop", "length"}
    system = {"model": name, "messages": [{"role": "user", "content": text}], "stream": False}
    assert server.post("/api/chat", system).status_code == 200
    hopeless = {"model": name, "messages": [{"role": "system", "content": text}, *SAID], "stream": False}
    refused = server.post("/api/chat", hopeless)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("the prompt is longer than the context length currently available")


def test_show_tells_the_truth(server: Server) -> None:
    plain = server.add("plain")
    encoder = server.add(tasks=["embed"])
    assert server.post("/api/show", {"model": plain}).json()["capabilities"] == ["completion"]
    server.post("/api/generate", {"model": plain})
    assert server.post("/api/show", {"model": plain}).json()["capabilities"] == ["completion"]
    server.post("/api/embed", {"model": encoder})
    assert server.post("/api/show", {"model": encoder}).json()["capabilities"] == ["embedding"]
    agent = {"user-agent": "GitHubCopilotChat/0.1"}
    shown = server.http.post(server.url + "/api/show", json={"model": plain.upper()}, headers=agent).json()
    assert shown["model_info"]["general.basename"] == plain.upper()
    assert "tokenizer.chat_template" not in shown["model_info"]


def test_digests_are_stable_and_lists_are_newest_first(server: Server) -> None:
    older, newer = server.add(answer="a"), server.add(answer="b")
    first = server.get("/api/tags").json()["models"]
    names = [model["name"] for model in first]
    assert names.index(newer) < names.index(older)
    assert all(re.fullmatch(r"[0-9a-f]{64}", model["digest"]) for model in first)
    assert server.get("/api/tags").json()["models"] == first


def test_a_model_that_is_made_anew_is_used_anew(server: Server) -> None:
    one, two = server.add(answer="one"), server.add(answer="two")
    for base, answer in ((one, "one"), (two, "two")):
        server.post("/api/create", {"model": "again", "from": base, "stream": False})
        got = server.post("/api/generate", {"model": "again", "prompt": "x", "stream": False})
        assert got.json()["response"] == answer


def test_a_client_that_leaves_ends_its_request(server: Server) -> None:
    name = server.add(answer="word " * 2000, delay_seconds=0.01)
    with server.http.stream("POST", f"{server.url}/api/generate", json={"model": name, "prompt": "x"}) as answer:
        assert json.loads(next(answer.iter_lines()))["response"]

    def running() -> int:
        models = server.get("/readyz").json()["models"]
        return sum(model["running"] for model in models if model["id"].startswith(name))

    server.until(lambda: running() == 0)


def test_ollamas_own_port_beside_the_main_one(tmp_path: Path) -> None:
    listen = "[[listen]]\nport = 0\n[[listen]]\nport = 0\ndialects = ['ollama']\noptional = true\n"
    with serve(tmp_path, more=listen, port=False) as started:
        ready = [json.loads(line) for line in started.log.splitlines() if '"ready"' in line]
        main, own = [entry["url"].rstrip("/") for entry in ready if entry["event"] == "ready"]
        assert httpx.get(own, trust_env=False).text == "Ollama is running"
        assert httpx.get(own + "/api/tags", trust_env=False).json() == {"models": []}
        assert httpx.get(own + "/v1/models", trust_env=False).status_code == 404
        assert httpx.get(main + "/v1/models", trust_env=False).status_code == 200
        assert httpx.get(main + "/api/version", trust_env=False).status_code == 200
        taken = own.rpartition(":")[2]
        second = tmp_path / "second"
        second.mkdir()
        more = f"[[listen]]\nport = 0\n[[listen]]\nport = {taken}\ndialects = ['ollama']\noptional = true\n"
        with serve(second, more=more, port=False) as other:
            assert other.get("/api/tags").json() == {"models": []}
            assert any('"warning"' in line and taken in line for line in other.log.splitlines())
