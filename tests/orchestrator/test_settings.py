from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.settings import SettingsError, effective, load


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pondera.yaml"
    path.write_text(text)
    return path


def test_case_50_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, "port: 1\nhost: 127.0.0.2\nlog_level: debug\n")
    monkeypatch.setenv("PONDERA_PORT", "2")
    monkeypatch.setenv("PONDERA_HOST", "127.0.0.3")
    settings = load(config, {"port": 3})
    assert (settings.port, settings.host, settings.log_level) == (3, "127.0.0.3", "debug")
    assert dict(effective(settings))["port"] == "3"


def test_nested_settings_merge_over_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path, "limits:\n  lease_s: 7\n  max_messages: 9\n")
    monkeypatch.setenv("PONDERA_LIMITS__MAX_BODY_BYTES", "4096")
    limits = load(config, {"limits.lease_s": "8"}).limits
    assert (limits.lease_s, limits.max_messages, limits.max_body_bytes) == (8, 9, 4096)


@pytest.mark.parametrize(
    "text", ["prot: 1", "limits:\n  lease: 3", "models:\n  - name: a\n    source: x\n    gpu: 1"]
)
def test_case_50_an_unknown_key_in_the_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"prot|lease|gpu") as e:
        load(write(tmp_path, text))
    assert "unknown" in str(e.value)


def test_case_50_an_unknown_variable_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PONDERA_PROT", "1")
    with pytest.raises(SettingsError, match=r"PONDERA_PROT.*PONDERA_PORT"):
        load()


@pytest.mark.parametrize("name", ["PONDERA_HOST__X", "PONDERA_PORT__Y", "PONDERA_LIMITS__LEASE_S__Z"])
def test_case_50_a_part_below_a_plain_setting_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=rf"unknown variable {name}; .* has no parts"):
        load()


@pytest.mark.parametrize("name", ["PONDERA_MODELS__0__NAME", "PONDERA_MODELS__0"])
def test_case_50_a_list_is_given_whole(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "a")
    with pytest.raises(SettingsError, match="PONDERA_MODELS has no parts"):
        load()


@pytest.mark.parametrize("name", ["PONDERA_LIMITS__LEASES", "PONDERA_LIMITS__", "pondera_limits__lease"])
def test_case_50_an_unknown_nested_variable_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingsError, match=rf"unknown variable {name}; .*PONDERA_LIMITS__LEASE_S"):
        load()


def test_case_50_a_variable_in_small_letters_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("pondera_port", "4")
    assert load().port == 4
    monkeypatch.setenv("pondera_prot", "4")
    with pytest.raises(SettingsError, match="pondera_prot"):
        load()


def test_the_variables_of_the_command_line_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PONDERA_API_KEY", "PONDERA_BASE_URL", "PONDERA_CONFIG"):
        monkeypatch.setenv(name, "x")
    assert load().port == 8080


def test_case_50_an_unknown_override_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"limits\.leases"):
        load(None, {"limits.leases": 1})


def test_a_value_out_of_range_names_its_setting() -> None:
    with pytest.raises(SettingsError, match=r"port.*65535"):
        load(None, {"port": 70000})


def test_model_names_must_differ(tmp_path: Path) -> None:
    text = "models:\n  - {name: a, source: tiny-reasoner}\n  - {name: a, source: tiny-reasoner}\n"
    with pytest.raises(SettingsError, match="differ"):
        load(write(tmp_path, text))


def test_a_model_has_exactly_one_origin(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="exactly one"):
        load(write(tmp_path, "models:\n  - {name: a, source: x, path: /y}\n"))


def test_a_store_password_is_not_shown(tmp_path: Path) -> None:
    settings = load(None, {"redis_url": "redis://user:hunter2@localhost:1/0"})
    assert all("hunter2" not in value for _, value in effective(settings))
    assert "hunter2" not in repr(settings)
    assert settings.redis_url is not None
    assert "hunter2" in settings.redis_url.get_secret_value()


def test_case_64_the_defaults_need_no_key_and_no_file() -> None:
    settings = load()
    assert settings.host == "127.0.0.1"
    assert [m.name for m in settings.models] == ["tiny-reasoner", "smollm2-135m-instruct"]
