"""Text to token ids and back, for one model, from the files in its own directory.

A thin skin over the `tokenizers` library that adds what the library does not know: which tokens are BOS, EOS and
padding, the chat template, exact bytes of single tokens, text in pieces. Knows nothing of requests and models.

Whether BOS is added to plain text is what the post-processor in tokenizer.json says; `add_bos_token` and
`add_eos_token` of tokenizer_config.json count only for a tokenizer.model, which has no post-processor. That is what
transformers 5 does, also where the two disagree. Spaces are never "cleaned up" after decoding
(`clean_up_tokenization_spaces`): a model's text stays as the model wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import processors

from llm_inference.errors import InvalidRequestError, SourceError
from llm_inference.text.chat import ChatTemplate
from llm_inference.text.detokenizer import IncrementalDetokenizer
from llm_inference.text.pieces import PieceTable
from llm_inference.text.sentencepiece import convert, read_model
from llm_inference.text.tokenizer_files import TokenizerFiles, read_files, read_text

_LOOKED_FOR = ("tokenizer.json", "tokenizer.model")
#: Ids between two declared added tokens that are filled with placeholders, so that both keep their id.
_MAX_FILLED_IDS = 4096


class Tokenizer:
    """Immutable after construction; every method may be called from several threads at a time.

    `special_tokens`: `bos_token`, `eos_token`, `pad_token`, … → the token's text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        # A tokenizer.json may carry training settings; a prompt is never cut or padded in silence.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._pieces = PieceTable(backend)
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.special_token_ids: frozenset[int] = self._pieces.special_ids
        #: Highest id + 1; ids below it may be unused.
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        #: No token stands for more characters than this: a bound on how few tokens a text can be.
        self.max_token_chars: int = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        pad = self._id_of("pad_token")
        #: Falls back to EOS; to 0 where there is none: padding is masked, any id serves.
        self.pad_token_id: int = next((i for i in (pad, self.eos_token_id) if i is not None), 0)

    @classmethod
    def load(
        cls, directory: Path, *, tokenizer: Path | None = None, chat_template: str | Path | None = None
    ) -> Tokenizer:
        """From a model directory.

        `tokenizer`: take vocabulary and special tokens from there instead (a directory, or one of its files).
        `chat_template`: use this one: Jinja source, a file, or the name of one of the model's own templates.
        Raises `SourceError` that names the file at fault, or the files that were looked for.
        """
        home, path = _find(tokenizer if tokenizer is not None else directory)
        files = read_files(home)
        backend = _read_tokenizer_json(path) if path.suffix == ".json" else _read_tokenizer_model(path, files)
        _add_tokens(backend, files, path)
        if not files.templates and home != directory and directory.is_dir():
            files.templates = read_files(directory).templates
        special_tokens = {name: token.content for name, token in files.named.items()}
        template = _choose_template(files.templates, chat_template, special_tokens, home)
        return cls(backend, special_tokens=special_tokens, chat_template=template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; special tokens written in it become those tokens. Releases the GIL while it works."""
        # `encode` of the library holds the GIL and computes offsets; this does neither.
        try:
            encodings = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError):
            # JSON can carry half a surrogate pair: no character, and no reason for a server error.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            encodings = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids outside the vocabulary are skipped. Raises `InvalidRequestError` for negative ids."""
        if self._pieces.has_long_byte_run(ids, skip_special_tokens):
            stream = self.detokenizer(skip_special_tokens=skip_special_tokens)
            return stream.add(ids) + stream.flush()
        try:
            text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            raise InvalidRequestError("Token ids must lie between 0 and 2**32 - 1.") from error
        return text

    def detokenizer(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """A new stream of text; with `prompt_ids` it goes on where the prompt ended."""
        return IncrementalDetokenizer(self._backend, self._pieces, prompt_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that this token stands for, which may be part of a character. Empty for an unknown id."""
        return self._pieces.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        r"""The token for the eye, as in logprobs: its text, or `bytes:\xe2\x82` for bytes that are no whole text."""
        data = self._pieces.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it (`<|im_end|>`), None if it has no such token."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def pad_batch(self, batch: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """(ids, mask), all rows as long as the longest, padded on the left; the mask is 0 on padding, else 1."""
        width = max(map(len, batch), default=0)
        ids = [[self.pad_token_id] * (width - len(row)) + list(row) for row in batch]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in batch]
        return ids, mask

    def to_json(self) -> str:
        """The whole tokenizer in tokenizer.json's format, for a grammar library. Large: not kept."""
        text: str = self._backend.to_str()
        return text

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.token_id(text)


def _find(place: Path) -> tuple[Path, Path]:
    """(directory, tokenizer file) of a directory, or of a file in it."""
    if place.is_file():
        return place.parent, place
    if not place.is_dir():
        raise SourceError(f"{place}: no such file or directory (looking for a tokenizer)")
    for name in _LOOKED_FOR:
        if (place / name).is_file():
            return place, place / name
    raise SourceError(
        f"{place}: no tokenizer there; looked for {' and '.join(_LOOKED_FOR)}. "
        "Put one of them beside the model, or set `tokenizer:` to a directory that has one."
    )


def _read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise SourceError(f"{path}: not a usable tokenizer.json: {error}") from error


def _read_tokenizer_model(path: Path, files: TokenizerFiles) -> tokenizers.Tokenizer:
    """A SentencePiece file; its own BOS, EOS, … fill in what the configuration does not name."""
    model = read_model(path)
    texts = {piece.text for piece in model.pieces}
    for token_id, token in files.declared.items():
        # A configuration may give a placeholder of the vocabulary its real name.
        if token_id < len(model.pieces) and token.content not in texts:
            model.pieces[token_id] = replace(model.pieces[token_id], text=token.content)
    backend = convert(model, legacy=files.legacy is not False)
    for name, piece_id in (
        ("bos_token", model.bos_id),
        ("eos_token", model.eos_id),
        ("unk_token", model.unk_id),
        ("pad_token", model.pad_id),
    ):
        text = model.text_of(piece_id)
        if text is not None and name not in files.named:
            files.named[name] = tokenizers.AddedToken(text, normalized=False, special=True)
    # Where nothing is said: decoder models of the Llama kind (BPE) begin with BOS, the others do not.
    add_bos = files.add_bos if files.add_bos is not None else model.model_type == 2
    bos, eos = files.named.get("bos_token"), files.named.get("eos_token")
    # Template names of their own, so that no character of a token's text is read as template syntax.
    added: dict[str, tokenizers.AddedToken] = {}
    if add_bos and bos is not None and backend.token_to_id(bos.content) is not None:
        added["BOS"] = bos
    if files.add_eos and eos is not None and backend.token_to_id(eos.content) is not None:
        added["EOS"] = eos
    single = [*(["BOS"] if "BOS" in added else []), "$A", *(["EOS"] if "EOS" in added else [])]
    backend.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, *("$B" if part == "$A" else part for part in single)],
        special_tokens=[
            {"id": name, "ids": [backend.token_to_id(token.content)], "tokens": [token.content]}
            for name, token in added.items()
        ],
    )
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, files: TokenizerFiles, path: Path) -> None:
    """Make every declared token known under its id, and every named or extra one special.

    A named token that the vocabulary has not, and that has no declared id, is left out: an id of its own would lie
    beyond the model's embeddings. Its role is then unfilled (padding falls back to EOS).
    """
    known = backend.get_added_tokens_decoder()
    known_texts = {token.content for token in known.values()}
    for token_id, token in sorted(files.declared.items()):
        if token.content in known_texts:
            continue
        if backend.token_to_id(token.content) is None:
            if token_id < backend.get_vocab_size(with_added_tokens=True):
                continue  # tokenizer.json has another name for this id, and that is what was trained
            _fill_up_to(backend, token_id, token.content, path)
        _add(backend, token)
    # An added token that is not special becomes so by a name (EOS), not by a mere mention among the extra ones.
    added = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    wanted = [token for token in files.named.values() if not added.get(token.content)]
    wanted += [token for token in files.extra if token.content not in added]
    for token in wanted:
        if backend.token_to_id(token.content) is not None:
            _add(backend, token)
    for name in [name for name, token in files.named.items() if backend.token_to_id(token.content) is None]:
        del files.named[name]


def _add(backend: tokenizers.Tokenizer, token: tokenizers.AddedToken) -> None:
    if token.special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def _fill_up_to(backend: tokenizers.Tokenizer, token_id: int, text: str, path: Path) -> None:
    """Placeholders for unused ids: the library numbers new tokens itself, each with the next free id."""
    size: int = backend.get_vocab_size(with_added_tokens=True)
    missing = token_id - size
    if missing > _MAX_FILLED_IDS:
        raise SourceError(
            f"{path}: tokenizer_config.json gives {text!r} the id {token_id}, but the vocabulary has {size} tokens; "
            "the files do not belong together"
        )
    backend.add_tokens([tokenizers.AddedToken(f"<|unused_{size + i}|>", normalized=False) for i in range(missing)])


def _choose_template(
    templates: Mapping[str, str], wanted: str | Path | None, special_tokens: Mapping[str, str], home: Path
) -> ChatTemplate | None:
    tool_source = None
    if wanted is None:
        source = templates.get("default")
        tool_source = templates.get("tool_use")
        if source is None:
            source = tool_source
    elif isinstance(wanted, str) and wanted in templates:
        source = templates[wanted]
    elif isinstance(wanted, str) and ("{" in wanted or "\n" in wanted):
        source = wanted
    elif Path(wanted).is_file():
        source = read_text(Path(wanted))
    else:
        names = ", ".join(sorted(templates)) or "none"
        raise SourceError(
            f"chat_template: {str(wanted)!r} is no file, no Jinja source and no template of {home} (there: {names})"
        )
    if source is None:
        return None
    return ChatTemplate(source, special_tokens=special_tokens, tool_source=tool_source)
