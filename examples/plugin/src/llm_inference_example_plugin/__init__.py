"""What llm-inference learns from this package: an architecture and a decoding rule. See docs/adding-a-model.md."""
