"""What llm-inference learns from this package: `engine: backwards`. See docs/adding-an-engine.md."""
