"""The `openai` dialect: OpenAI's chat, completions and embeddings, Jina's rerank, and LlamaPi's management routes."""
