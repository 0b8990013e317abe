"""The ONNX Runtime platform of Cardcage: embeddings, rerank, and chat through onnxruntime-genai."""
