"""langchain-ollama against a server: `python check_langchain.py URL MODEL EMBEDDER`."""

import sys

from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel

url, model, embedder = sys.argv[1:]


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return city


class Number(BaseModel):
    """A number."""

    n: int


chat = ChatOllama(model=model, base_url=url, reasoning=False)
answer = chat.invoke("hi")
assert answer.content == "Hello there, friend.", answer
assert answer.usage_metadata is not None
assert answer.usage_metadata["output_tokens"] == 3
assert "".join(str(piece.content) for piece in chat.stream("hi")) == "Hello there, friend."
thinking = ChatOllama(model=model, base_url=url, reasoning=True).invoke("hi")
assert thinking.additional_kwargs["reasoning_content"] == "Let me think.", thinking
called = chat.bind_tools([weather]).invoke("weather?")
assert called.tool_calls[0]["args"] == {"city": "Paris"}, called
assert chat.with_structured_output(Number).invoke("hi") == Number(n=0)
vectors = OllamaEmbeddings(model=embedder, base_url=url)
assert len(vectors.embed_documents(["one", "two"])) == 2
assert len(vectors.embed_query("one")) == 16
assert OllamaLLM(model=model, base_url=url, reasoning=False).invoke("hi") == "Hello there, friend."
print("done langchain")
