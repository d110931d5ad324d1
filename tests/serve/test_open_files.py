from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator

import pytest

from llm_inference.serve.open_files import OpenFiles


@pytest.fixture
def few_files() -> Iterator[list[int]]:
    """A low limit; the descriptors in the list are closed at the end."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, before[1]))
    taken: list[int] = []
    try:
        yield taken
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def take_all(taken: list[int]) -> None:
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            return


def give_all(taken: list[int]) -> None:
    while taken:
        os.close(taken.pop())


def test_a_shortage_is_told_once_and_so_is_its_end(few_files: list[int], caplog: pytest.LogCaptureFixture) -> None:
    files = OpenFiles()
    with caplog.at_level(logging.INFO):
        files.look()
        assert not caplog.messages
        take_all(few_files)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files.look()
        files.look()
        give_all(few_files)
        files.look()
        files.look()
    said, ended = caplog.messages
    assert said.startswith(f"out of file descriptors (this process may have {limit} open): new connections are closed")
    assert ended.startswith("file descriptors are free again, after ")


def test_a_shortage_that_comes_and_goes_is_not_told_each_time(
    few_files: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    files = OpenFiles()
    for _ in range(5):
        take_all(few_files)
        files.look()
        give_all(few_files)
        files.look()
    assert len(caplog.messages) == 2


def test_after_the_time_it_is_told_again(few_files: list[int], caplog: pytest.LogCaptureFixture) -> None:
    files = OpenFiles(say_every_s=0)
    take_all(few_files)
    files.look()
    files.look()
    assert len(caplog.messages) == 2
