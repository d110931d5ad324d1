"""Case O3 on real vocabularies: ids of a tokenizer read from GGUF equal llama.cpp's own on llama.cpp's own texts.

The source distribution of `llama-cpp-python` carries llama.cpp's vocabulary files, each with texts (`.inp`) and the ids
that llama.cpp gives them (`.out`). pip fetches it once, against a pinned hash; then the files lie in pytest's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from llm_inference.errors import UnsupportedModelError
from llm_inference.sources.gguf.reader import open_gguf
from llm_inference.sources.gguf.tokenizer import write_tokenizer
from llm_inference.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MEMBER = re.compile(r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-[\w.-]+\.gguf(?:\.inp|\.out)?)")
SEPARATOR = "\n__ggml_vocab_test__\n"

#: Vocabularies with texts and ids, and how many.
MATCHED = {
    "command-r": 46,
    "deepseek-coder": 46,
    "deepseek-llm": 46,
    "falcon": 46,
    "gpt-2": 46,
    "llama-bpe": 46,
    "llama-spm": 46,
    "mpt": 46,
    "phi-3": 46,
    "qwen2": 46,
    "qwen35": 50,
    "refact": 46,
    "starcoder": 46,
}
#: Vocabularies of another kind (`tokenizer.ggml.model`): refused, because a near miss would be worse than none.
REFUSED = {"bert-bge": "bert", "gemma-4": "gemma4", "nomic-bert-moe": "t5"}
#: There is nothing to compare them with.
WITHOUT_TEXTS = {"aquila", "baichuan", "gpt-neox"}


@pytest.fixture(scope="module")
def vocabularies(request: pytest.FixtureRequest) -> Path:
    """The directory with llama.cpp's vocabulary files; complete or not there at all."""
    cache: pytest.Cache = request.config.cache  # type: ignore[assignment]
    home = cache.mkdir(f"{PACKAGE}-{VERSION}")
    directory = home / "vocabularies"
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            made = Path(scratch) / "vocabularies"
            made.mkdir()
            extract(download(Path(scratch)), made)
            made.rename(directory)
    return directory


def download(directory: Path) -> Path:
    """The source distribution, fetched by pip and checked by it. Without an index: a skip, in CI a failure."""
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--require-hashes",
        "--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(directory), "--requirement", str(wanted),
    ]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"pip could not fetch {PACKAGE} {VERSION}: {done.stderr.strip().splitlines()[-1:]}"
        if os.environ.get("CI") or "HASHES" in done.stderr:
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    [archive] = directory.glob("*.tar.gz")
    return archive


def extract(archive: Path, directory: Path) -> None:
    """Only regular files whose whole path is as expected, under their last name: nothing can land elsewhere."""
    with tarfile.open(archive) as members:
        for member in members:
            match = MEMBER.fullmatch(member.name)
            if match is None or not member.isfile():
                continue
            packed = members.extractfile(member)
            assert packed is not None
            with packed, (directory / match[1]).open("wb") as file:
                shutil.copyfileobj(packed, file)


def test_every_file_is_compared_or_refused(vocabularies: Path) -> None:
    found = {file.name.removeprefix("ggml-vocab-").removesuffix(".gguf") for file in vocabularies.glob("*.gguf")}
    assert found == MATCHED.keys() | REFUSED.keys() | WITHOUT_TEXTS
    with_texts = {file.name.removeprefix("ggml-vocab-").split(".gguf")[0] for file in vocabularies.glob("*.inp")}
    assert with_texts <= MATCHED.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", sorted(MATCHED))
def test_ids_equal_llama_cpp(vocabularies: Path, name: str, tmp_path: Path) -> None:
    file = vocabularies / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{file}.inp").read_text(encoding="utf-8").split(SEPARATOR)
    assert texts.pop() == ""  # the last text ends with a separator, too
    expected = [[int(number) for number in line.split()] for line in Path(f"{file}.out").read_text().splitlines()]
    assert len(texts) == len(expected) == MATCHED[name]

    write_tokenizer(open_gguf(file), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    ids = [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    assert ids == expected


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_kinds_are_refused(vocabularies: Path, name: str, tmp_path: Path) -> None:
    model = open_gguf(vocabularies / f"ggml-vocab-{name}.gguf")
    with pytest.raises(UnsupportedModelError, match=f"vocabulary kind '{REFUSED[name]}' cannot be converted"):
        write_tokenizer(model, tmp_path)
    assert list(tmp_path.iterdir()) == []
