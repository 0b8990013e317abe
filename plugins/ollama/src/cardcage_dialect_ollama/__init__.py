"""The Ollama API as a dialect of Cardcage."""
