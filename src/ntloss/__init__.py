"""Number-aware losses for language models."""
