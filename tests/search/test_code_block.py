from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.code_block import last_code_block
from search.extract import ThinkingMarkers


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("Here:\n\n```py\nx = 1\n\ny = 2\n```\nDone.", "x = 1\n\ny = 2\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```Python3\nx = 1\n```", "x = 1\n"),
        ("``` python title=a.py\nx\n```", "x\n"),
        ("```{.python .numberLines}\nx\n```", "x\n"),
        ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
        ("````python\n```\nx\n```\n````", "```\nx\n```\n"),
        ("1. so:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("  ```python\nx\n ```", "x\n"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\n"),
        ("```python\nx = 1", "x = 1\n"),
        ("```python\nx = 1\n``", "x = 1\n``\n"),
        ("```python\ns = 'a ``` b'\n```", "s = 'a ``` b'\n"),
    ],
)
def test_a_block_is_found_as_it_was_written(text: str, code: str) -> None:
    assert last_code_block(text) == code


def test_the_last_python_block_counts_and_other_languages_do_not() -> None:
    text = (
        "```python\nfirst\n```\n```python\nsecond\n```\nRun it:\n```bash\npython a.py\n```\n```json\n{}\n```"
    )
    assert last_code_block(text) == "second\n"


def test_a_blank_block_counts_for_nothing() -> None:
    assert last_code_block("```python\nx\n```\n```\n\n```") == "x\n"


@pytest.mark.parametrize(
    "text", ["", "x = 1", "```print(1)```", "``\nx\n``", "```bash\nls\n```", "```python\n```", "use `x` here"]
)
def test_a_text_without_one_has_none(text: str) -> None:
    assert last_code_block(text) is None


def test_code_in_thinking_is_no_answer() -> None:
    thinking = ThinkingMarkers()
    text = "<think>\n```python\ndraft\n```\n</think>\n```python\nfinal\n```"
    assert last_code_block(text, thinking) == "final\n"
    assert last_code_block("<think>\n```python\ndraft\n```\n", thinking) is None
    assert last_code_block("```python\na\n```\n</think>\nno code", thinking) is None


@given(st.lists(st.sampled_from(["```", "```python", "~~~", "    ", "x", "", "````", "<think>", "</think>"])))
def test_any_text_gives_a_block_that_is_not_blank_or_none(lines: list[str]) -> None:
    code = last_code_block("\n".join(lines), ThinkingMarkers())
    assert code is None or code.strip()


def test_time_is_linear() -> None:
    for unit in ("```python\n", "`", "```", "~", " ", "```python\nx\n```\n", "```a`b\n"):
        start = time.process_time()
        last_code_block(unit * (500_000 // len(unit)))
        assert time.process_time() - start < 2
