"""`tokenizer.ggml.pre` → how a byte-level BPE vocabulary cuts text into words before merging.

A GGUF file names its pre-tokenizer; the patterns themselves belong to the vocabularies that were trained with them. A
literal table, so that a new name is one line. Knows nothing of vocabularies, merges or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from llm_inference.errors import UnsupportedModelError

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_SENTENCES: Final = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_CJK_WIDE: Final = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
# The cased letters of all scripts, as the first DeepSeek vocabulary lists them.
_CASED_LETTERS: Final = (
    r"A-Za-z\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}\x{01C4}-\x{0293}"
    r"\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}\x{0386}\x{0388}-\x{038A}"
    r"\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}"
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}"
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}"
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}"
    r"\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}"
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}"
    r"\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}"
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns applied one after the other, each isolating its matches; then bytes become letters.

    `ignore_merges`: a word that is a token is taken whole. `add_bos`: what holds when the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> Any:
        """The `tokenizers` object."""
        from tokenizers import Regex, pre_tokenizers

        steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


def _words(number: str) -> str:
    """The pattern that Llama 3 and Qwen2 share but for how many digits make a word."""
    return _CONTRACTIONS + rf"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*" + _TAIL


_KINDS: Final = {
    "gpt2": PreTokenizer((_GPT2,)),
    "gpt2-nfc": PreTokenizer((_GPT2,), nfc=True),
    "digits": PreTokenizer((r"\p{N}", _GPT2)),
    "digits-nfc": PreTokenizer((r"\p{N}", _GPT2), nfc=True),
    "llama3": PreTokenizer((_words("{1,3}"),), ignore_merges=True, add_bos=True),
    "cl100k": PreTokenizer((_words("{1,3}"),)),
    "glm4": PreTokenizer((_words("{1,3}"),), ignore_merges=True),
    "qwen2": PreTokenizer((_words(""),), nfc=True),
    "qwen2-raw": PreTokenizer((_words(""),)),
    "qwen35": PreTokenizer(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL,),
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            _CJK_WIDE,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}")),
    "deepseek-v3": PreTokenizer(
        (
            r"\p{N}{1,3}",
            r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL,
        )
    ),
    "tekken": PreTokenizer((_CASED % ("", "", ""),), ignore_merges=True, add_bos=True),
    "o200k": PreTokenizer((_CASED % (_CONTRACTIONS + "?", _CONTRACTIONS + "?", "{1,3}"),)),
    "bloom": PreTokenizer((_SENTENCES,)),
    "viking": PreTokenizer((_SENTENCES, r"\p{N}")),
    "bailing": PreTokenizer(
        (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
    ),
    "seed-coder": PreTokenizer((_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _TAIL,)),
}

_NAMES: Final = {
    "gpt2": "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 "
    "mellum modern-bert jais trillion granite-docling exaone4",
    "gpt2-nfc": "mpt olmo",
    "digits": "smollm starcoder refact codeshell exaone minerva-7b mellum2",
    "digits-nfc": "command-r",
    "llama3": "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    "cl100k": "dbrx smaug-bpe chatglm-bpe",
    "glm4": "glm4 glm5",
    "qwen2": "qwen2 megrez kormo",
    "qwen2-raw": "stablelm2 deepseek-r1-qwen hunyuan solar-open grok-2",
    "qwen35": "qwen35",
    "falcon": "falcon",
    "default": "default",
    "deepseek-llm": "deepseek-llm",
    "deepseek-coder": "deepseek-coder",
    "deepseek-v3": "deepseek-v3 hunyuan-dense joyai-llm",
    "tekken": "tekken",
    "o200k": "gpt-4o llama4 kanana2 minimax-m2",
    "bloom": "poro-chat bloom gpt3-finnish",
    "viking": "viking",
    "bailing": "bailingmoe bailingmoe2 llada-moe",
    "seed-coder": "seed-coder",
}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer that GGUF calls `name`. Raises `UnsupportedModelError` naming it."""
    for kind, names in _NAMES.items():
        if name in names.split():
            return _KINDS[kind]
    raise UnsupportedModelError(
        f"tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not known here; "
        "use the model's original directory with its tokenizer.json instead"
    )
