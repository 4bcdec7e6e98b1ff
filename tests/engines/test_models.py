from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize

from engines.models import KNOWN_MODELS, ModelPreparationError, prepare
from engines.models.catalog import InRepository, KnownModel
from engines.models.reward_head import derive
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


def test_a_derived_model_comes_with_its_base_and_a_head_between_two_labels(tmp_path: Path) -> None:
    files = prepare("tiny-reasoner-prm", tmp_path)
    assert files.process_reward is None
    assert files.reward_head is not None
    base = prepare(NAME, tmp_path)
    derived, original = (
        dict(deserialize((folder / "model.safetensors").read_bytes()))  # type: ignore[no-untyped-call]
        for folder in (files.path, base.path)
    )
    head = derived.pop("score.weight")
    assert derived == original
    assert (head["dtype"], head["shape"]) == ("F32", [1, 128])
    tokenizer = ModelTokenizer(files.path)
    embedding = np.frombuffer(original["model.embed_tokens.weight"]["data"], "<u2").reshape(-1, 128)
    right, wrong = ((embedding[tokenizer.token_id(t)].astype("<u4") << 16).view("<f4") for t in "+-")
    assert np.array_equal(np.frombuffer(head["data"], "<f4"), right - wrong)
    config = json.loads((files.path / "config.json").read_text())
    assert (config["architectures"], config["num_labels"]) == (["LlamaForSequenceClassification"], 1)


def test_a_model_from_which_no_head_can_be_derived_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(prepare(NAME, tmp_path).path, base)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ValueError, match="not one token"):
        derive(base, target, ("+", "++"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ValueError, match="tied"):
        derive(base, target, ("+", "-"))


def test_an_unknown_model_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"smollm2-135m-instruct, tiny-reasoner, tiny-reasoner-prm"):
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
