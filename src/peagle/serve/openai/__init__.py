"""OpenAI's interface: chat and text completions, models."""
