from __future__ import annotations

import pytest

from llm_inference.config.values import check_urls, parse_precision, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (5, 5), ("2GiB", 2 * 2**30), ("512MB", 512 * 10**6), ("1.5 GiB", 3 * 2**29), (" 32mib ", 32 * 2**20),
        ("7B", 7), ("3kB", 3000), ("1TiB", 2**40), ("0.1kB", 100),
    ],
)  # fmt: skip
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", [True, 1.5, None, "", "2", "2G", "-1GiB", "GiB", "2 GiB extra", "1e3MB", [1]])
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="size with its unit"):
        parse_size(text)


def test_a_size_beyond_all_numbers() -> None:
    with pytest.raises(ValueError, match="larger than any memory"):
        parse_size("9" * 400 + "GB")


def test_precisions_have_short_names() -> None:
    assert [parse_precision(name) for name in ("fp32", "fp16", "bf16", "half", "int8", "auto", 3)] == [
        "float32", "float16", "bfloat16", "float16", "int8", "auto", 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "url", ["http://a", "https://u:p@a.b:443/v1", "grpc://[::1]:8001", "http://a:1,http://b:2 http://c"]
)
def test_urls(url: str) -> None:
    check_urls(url)


@pytest.mark.parametrize(
    "url",
    [
        "a:80", "//a", "ftp://a", "http://", "http://:80", "http://a:99999", "http://a:b", "http://a:-1", "http://a:0",
        "http://[::1", "http://a..b", "http://.", "http://" + "a" * 64, "http://a,http://", "http://\u2024",
    ],
)  # fmt: skip
def test_no_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"name a host|[Pp]ort|IPv6"):
        check_urls(url)
