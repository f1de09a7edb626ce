"""Evidence with a real language model, SmolLM2-135M-Instruct."""
