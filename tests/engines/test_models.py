from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from engines.models import KNOWN_MODELS, ModelPreparationError, prepare
from engines.models.catalog import InRepository, KnownModel
from engines.tokenizer import ModelTokenizer

NAME = "tiny-reasoner"


def test_a_prepared_model_has_its_files_and_its_judge(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    files = prepare(NAME, tmp_path / "new", lambda what, share: told.append((what, share)))
    form = files.process_reward
    assert form is not None
    tokenizer = ModelTokenizer(files.path)
    for text in (form.suffix, *form.labels):
        assert tokenizer.token_id(text) > 0
    assert told[0][1] == 0.0
    assert told[-1] == ("ready", 1.0)
    assert [share for _, share in told] == sorted(share for _, share in told)


def test_a_second_preparation_leaves_the_files_alone(tmp_path: Path) -> None:
    first = prepare(NAME, tmp_path)
    before = (first.path / "model.safetensors").stat()
    second = prepare(NAME, tmp_path)
    after = (second.path / "model.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("harm", ["remove", "change", "marker", "version"])
def test_damaged_files_are_put_in_place_again(tmp_path: Path, harm: str) -> None:
    folder = prepare(NAME, tmp_path).path
    weights, marker = folder / "model.safetensors", folder / "prepared.json"
    sound = weights.read_bytes()
    if harm == "remove":
        weights.unlink()
    elif harm == "change":
        weights.write_bytes(b"0" + sound[1:])
    elif harm == "marker":
        marker.write_text("{")
    else:
        marker.write_text(json.dumps({**json.loads(marker.read_text()), "version": 0}))
    assert prepare(NAME, tmp_path).path == folder
    assert weights.read_bytes() == sound


def test_leftovers_of_interrupted_work_are_cleared_away(tmp_path: Path) -> None:
    leftover = tmp_path / f".{NAME}.abc.partial" / "files"
    leftover.mkdir(parents=True)
    prepare(NAME, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".{NAME}.lock", NAME]


def test_wrong_contents_are_refused_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KNOWN_MODELS[NAME].source
    assert isinstance(source, InRepository)
    forged = KnownModel(source, {"config.json": "0" * 64})
    monkeypatch.setattr("engines.models.preparation.KNOWN_MODELS", {"forged": forged})
    with pytest.raises(ModelPreparationError, match=r"config\.json"):
        prepare("forged", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".forged.lock"]


def test_an_unknown_model_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"smollm2-135m-instruct, tiny-reasoner"):
        prepare("gpt-5", tmp_path)


def test_two_preparations_at_once_end_with_one_sound_model(tmp_path: Path) -> None:
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(prepare(NAME, tmp_path).path)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tmp_path / NAME] * 4
