"""Who is compared: what the command line names, as plain values. Nothing is started or resolved here.

    FILE.yaml                       a configuration; its one model
    NAME                            `NAME.yaml` in the folder of peers
    url=http://…[,model=NAME]       a server that runs already

Beside a configuration's own keys a file may have a section `bench:` that says how it is to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from llm_inference.config.load import Override, load_config
from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError
from llm_inference.tools.compare.workloads import NAMES

Precision = Literal["fp32", "bf16", "int8", "int4", "other"]
#: How requests reach it: our server in front · its own server · its library in a short script · our engine without one.
Through = Literal["serve", "direct", "library", "offline", "url"]

#: Engines with an OpenAI server of their own, which is measured at its own address.
SERVERS = ("vllm", "sglang", "llama.cpp", "transformers", "tensorrt-llm", "ollama", "lightllm-openai", "tgi")
#: Engines that are libraries and have a script.
LIBRARIES = ("openvino", "onnx", "transformers")
OWN_ENGINES = ("auto", "native")


class BenchSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench:` of a file. `precision` is the class that it is compared in; `gguf` the type its weights are written anew
    in, for engines that read GGUF; `batching` which of a library's two ways is used, where it has two.
    """

    title: str | None = None
    precision: Precision | None = None
    through: Literal["serve", "direct", "library", "offline"] | None = None
    workloads: tuple[str, ...] = NAMES
    gguf: Literal["F32", "F16", "Q8_0", "Q4_0"] | None = None
    batching: Literal["static", "continuous"] = "continuous"


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """One of those compared. `model` is None for a server that runs already."""

    name: str
    title: str
    precision: Precision
    through: Through
    model: ModelConfig | None = None
    url: str | None = None
    url_model: str | None = None
    api_key: str | None = None
    bench: BenchSection = BenchSection()

    @property
    def is_ours(self) -> bool:
        return self.model is not None and self.model.engine in OWN_ENGINES


def peer_names(peers: Path) -> list[str]:
    return sorted(path.stem for path in peers.glob("*.yaml"))


def find_contenders(
    words: Sequence[str], peers: Path, precisions: Sequence[Precision] = (), *, api_key: str | None = None
) -> list[Contender]:
    """In the order given; with no words, all peers. `precisions` keeps those of these classes alone, and is what a
    configuration computes in that says nothing of it (the first of them). Raises `ConfigError`.
    """
    named = list(words) or peer_names(peers)
    if not named:
        raise ConfigError(f"--peers: {peers} holds no *.yaml; name contenders, or the folder with peers")
    contenders = [_contender(word, peers, precisions, api_key) for word in named]
    if not words and precisions:
        contenders = [one for one in contenders if one.precision in precisions]
    seen: set[str] = set()
    for one in contenders:
        if one.name in seen:
            raise ConfigError(f"{one.name} is named twice; each contender needs a name of its own")
        seen.add(one.name)
    if not contenders:
        raise ConfigError(f"no peer in {peers} computes in {', '.join(precisions)}")
    # Ours first, since ratios are to the first; then class by class.
    order = ("fp32", "bf16", "int8", "int4", "other")
    return contenders if words else sorted(contenders, key=lambda one: (order.index(one.precision), not one.is_ours))


def offline_contender(path: Path | None, precisions: Sequence[Precision] = ()) -> Contender:
    """The native engine without HTTP, from a configuration file or the defaults. Raises `ConfigError`."""
    if path is None:
        overrides = (Override(("model", "precision"), precisions[0], "--precision"),) if precisions else ()
        bench, model = BenchSection(), load_config(None, overrides).config.models[0]
    else:
        bench, model = read_contender(path, precisions)
    if model.engine not in OWN_ENGINES:
        raise ConfigError(f"{path}: engine: {model.engine}: this measures the native engine; use `bench compare`")
    precision = bench.precision or _class_of(model)
    return Contender(
        name="native",
        title=bench.title or f"native {precision}",
        precision=precision,
        through="offline",
        model=model,
        bench=bench,
    )


def _contender(word: str, peers: Path, precisions: Sequence[Precision], api_key: str | None) -> Contender:
    if word.startswith("url="):
        return _running(word, precisions, api_key)
    path = Path(word)
    if not path.is_file():
        path = peers / f"{word}.yaml"
    if not path.is_file():
        known = ", ".join(peer_names(peers)) or "none"
        raise ConfigError(f"{word!r} is neither a file, nor url=…, nor a peer; the peers in {peers}: {known}")
    bench, model = read_contender(path, precisions)
    precision = bench.precision or _class_of(model)
    through = bench.through or ("direct" if model.engine in SERVERS else "serve")
    if model.url is not None:
        through_url = model.url.split(",")[0]
        key = model.api_key.get_secret_value() if model.api_key is not None else None
        return Contender(
            name=path.stem,
            title=bench.title or path.stem,
            precision=precision,
            through="url",
            url=through_url,
            url_model=model.model,
            api_key=key,
            bench=bench,
        )
    _check(path, through, model)
    return Contender(
        name=path.stem, title=bench.title or path.stem, precision=precision, through=through, model=model, bench=bench
    )


def _running(word: str, precisions: Sequence[Precision], api_key: str | None) -> Contender:
    first, *pairs = word.split(",")
    url = first.removeprefix("url=")
    options = dict(pair.partition("=")[::2] for pair in pairs)
    unknown = options.keys() - {"model", "name"}
    if unknown or not url.startswith(("http://", "https://")):
        raise ConfigError(f"{word!r}: write url=http://HOST:PORT, and after commas model=NAME and name=NAME")
    name = options.get("name", url.partition("://")[2].rstrip("/"))
    precision = precisions[0] if precisions else "other"
    return Contender(
        name=name,
        title=name,
        precision=precision,
        through="url",
        url=url,
        url_model=options.get("model"),
        api_key=api_key,
    )


def read_contender(path: Path, precisions: Sequence[Precision] = ()) -> tuple[BenchSection, ModelConfig]:
    """The section `bench:` and the one model of a file. Raises `ConfigError`."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of keys such as `model:` and `engine:`")
    try:
        bench = msgspec.convert(data.get("bench") or {}, BenchSection)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: bench: {error}") from error
    for name in bench.workloads:
        if name not in NAMES:
            raise ConfigError(f"{path}: bench.workloads: {name!r} is none; there are {', '.join(NAMES)}")
    config = _load(path, data).config
    if len(config.models) != 1:
        raise ConfigError(f"{path}: has {len(config.models)} models; a contender is a file with one")
    model = config.models[0]
    if precisions and not model.model_fields_set & {"precision", "dtype", "quantization"} and bench.precision is None:
        override = Override(("model", "precision"), precisions[0], "--precision")
        model = _load(path, data, (override,)).config.models[0]
    return bench, model


def _load(path: Path, data: dict[str, Any], overrides: Sequence[Override] = ()) -> Any:
    """`load_config` of the file without its section `bench:`; messages name the file itself."""
    if "bench" not in data:
        return load_config(path, overrides)
    import tempfile

    kept = {key: value for key, value in data.items() if key != "bench"}
    with tempfile.TemporaryDirectory(prefix="llm-inference-bench-") as folder:
        copy = Path(folder) / path.name
        copy.write_text(yaml.safe_dump(kept), encoding="utf-8")
        try:
            return load_config(copy, overrides)
        except ConfigError as error:
            raise ConfigError(error.message.replace(str(copy), str(path))) from error


def _class_of(model: ModelConfig) -> Precision:
    quantization = model.resolved_quantization
    if quantization in ("int8", "int4"):
        return "int8" if quantization == "int8" else "int4"
    if quantization is not None:
        return "other"
    return {"auto": "fp32", "float32": "fp32", "bfloat16": "bf16"}.get(model.resolved_dtype, "other")  # type: ignore[return-value]


def _check(path: Path, through: str, model: ModelConfig) -> None:
    allowed = {"direct": SERVERS, "library": LIBRARIES, "offline": OWN_ENGINES}.get(through)
    if allowed is not None and model.engine not in allowed:
        raise ConfigError(
            f"{path}: bench.through: {through} is for the engines {', '.join(allowed)}, not for {model.engine}"
        )
