"""The llama.cpp platform of Cardcage: GGUF models on the CPU, batched across requests."""
