"""Models of a hub: `org/name[@revision][:FILE.gguf]`, through huggingface_hub and under its own settings.

Mirror (HF_ENDPOINT), offline mode (HF_HUB_OFFLINE), token (HF_TOKEN) and cache (HF_HOME) are that library's. Here is
only which files of a repository make a model, and what its errors mean to a user.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from llm_inference.errors import SourceError

_TIMEOUT_S: Final = 15.0
_COMPANIONS: Final = re.compile(
    r"^(?:[^/]+\.(?:json|jinja|model|tiktoken)|(?:merges|vocab)\.txt|additional_chat_templates/[^/]+\.jinja)$"
)
_CODE: Final = re.compile(r"^[^/]+\.py$")
_PICKLE: Final = re.compile(r"^pytorch_model[^/]*\.bin$")
_SPLIT: Final = re.compile(r"^(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})\.gguf$")
_SPLIT_FIRST: Final = re.compile(r"-00001-of-\d{5}\.gguf$")


def fetch(
    repo: str,
    *,
    revision: str | None = None,
    file: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
    endpoint: str | None = None,
    hub_cache: Path | None = None,
) -> Path:
    """The local snapshot directory of a repository, downloaded as far as needed.

    Without a connection, or in offline mode, the cached snapshot is used. `endpoint` and `hub_cache` override the
    library's own settings. Raises `SourceError` with advice.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi(endpoint=endpoint)
    with _progress_bars(progress), _translated(repo, revision):
        options: dict[str, Any] = {"revision": revision, "cache_dir": hub_cache, "endpoint": endpoint}
        try:
            # Not list_repo_files: that one tries for half a minute before it says that there is no network.
            siblings = api.model_info(repo, revision=revision, timeout=_TIMEOUT_S).siblings or []
        except Exception as unreachable:
            if not _is_connection_error(unreachable):
                raise
            try:
                return Path(huggingface_hub.snapshot_download(repo, local_files_only=True, **options))
            except Exception as error:
                raise SourceError(
                    f"the hub cannot be reached for {repo} ({_short(unreachable)}) and the model is not in the local "
                    "cache. Check the network, HF_ENDPOINT (a mirror) and HF_HUB_OFFLINE, or give a local directory"
                ) from error
        chosen = choose_files(
            [entry.rfilename for entry in siblings], repo, file=file, trust_remote_code=trust_remote_code
        )
        patterns = [glob.escape(name) for name in chosen]
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=patterns, **options))


def choose_files(
    files: Sequence[str], repo: str, *, file: str | None = None, trust_remote_code: bool = False
) -> list[str]:
    """The files to download: config, tokenizer and one set of weights, safetensors before pickles before GGUF.

    Code (*.py) comes along only if `trust_remote_code`. Raises `SourceError` when there is no one set of weights.
    """
    ggufs = [name for name in files if name.endswith(".gguf")]
    if file is not None:
        return _gguf_set(file, ggufs, repo)
    weights = _safetensors(files) or [name for name in files if _PICKLE.match(name)]
    if not weights:
        firsts = [name for name in ggufs if not _SPLIT.match(name) or _SPLIT_FIRST.search(name)]
        if len(firsts) == 1:
            return _gguf_set(firsts[0], ggufs, repo)
        if firsts:
            raise SourceError(
                f"{repo} holds several GGUF files ({', '.join(firsts)}); name one, as in {repo}:{firsts[0]}"
            )
        raise SourceError(f"{repo} holds no model: no *.safetensors, pytorch_model*.bin or *.gguf")
    companions = [name for name in files if _COMPANIONS.match(name)]
    code = [name for name in files if trust_remote_code and _CODE.match(name)]
    return [*companions, *weights, *code]


def _safetensors(files: Sequence[str]) -> list[str]:
    """Those at the top, without a second copy of the same weights under the name consolidated*.safetensors."""
    top = [name for name in files if name.endswith(".safetensors") and "/" not in name]
    return [name for name in top if name.startswith("model")] or top


def _gguf_set(file: str, ggufs: Sequence[str], repo: str) -> list[str]:
    """The file, with its sisters when the model is split."""
    if file not in ggufs:
        raise SourceError(f"{repo} holds no {file}; its GGUF files are: {', '.join(ggufs) or 'none'}")
    match = _SPLIT.match(file)
    if match is None:
        return [file]
    return [
        name for name in ggufs if re.fullmatch(rf"{re.escape(match['stem'])}-\d{{5}}-of-{match['count']}\.gguf", name)
    ]


@contextlib.contextmanager
def _progress_bars(wanted: bool) -> Iterator[None]:
    """Silence the library's bars for the time of a download, unless they are wanted or silent already."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if wanted or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def _translated(repo: str, revision: str | None) -> Iterator[None]:
    """The library's errors in our words."""
    from huggingface_hub import errors

    try:
        yield
    except SourceError:
        raise
    except errors.GatedRepoError as error:
        raise SourceError(
            f"{repo} is gated: accept its terms on its page of the hub and set HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"the hub knows no model {repo}, or it is private; check the spelling, and HF_TOKEN if it is yours"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(f"{repo} has no revision {revision!r}; give a branch, a tag or a commit") from error
    except errors.HFValidationError as error:
        raise SourceError(f"{repo!r} is no hub id like org/name: {_short(error)}") from error
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise SourceError(f"the hub refused access to {repo} ({status}); set HF_TOKEN to a valid token") from error
        raise SourceError(f"the hub failed on {repo}: {_short(error)}; try again later") from error
    except OSError as error:
        raise SourceError(f"{repo} could not be downloaded: {_short(error)}") from error
    except Exception as error:
        # The HTTP client's own exceptions have no common root with OSError, and it changed between releases.
        raise SourceError(f"{repo} could not be downloaded: {_short(error)}") from error


def _is_connection_error(error: Exception) -> bool:
    """Whether nobody answered: an answer with an error status is none. Clients differ, so their names must do."""
    from huggingface_hub import errors

    if isinstance(error, (errors.OfflineModeIsEnabled, ConnectionError, TimeoutError)):
        return True
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "ConnectTimeout", "Timeout"})


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
