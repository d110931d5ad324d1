"""Text in and out of a model: tokenizer, incremental detokenizer, chat templates, stop strings, output parsers.

Torch-free and transformers-free. Used by the native engine's front and by adapters of engines that have no template.
"""
