"""GGUF files become directories in the hub's layout: read, config, tensors, tokenizer, put together in `convert`.

Nothing here knows of caches, downloads or engines: a file goes in, files come out.
"""

from typing import Final

#: Part of every cache key: raise it when the output of a conversion changes.
CONVERTER_VERSION: Final = 1
