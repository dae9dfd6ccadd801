"""The node image is built once, from a wheel that is checked, and laid into nodes."""

from pathlib import Path

import pytest

from ddtree_ops.lab import image
from ddtree_ops.model.errors import Failed


def test_a_wheel_with_another_hash_is_refused_by_name(tmp_path: Path) -> None:
    wheel = tmp_path / image._WHEEL
    wheel.write_bytes(b"not it")
    with pytest.raises(Failed) as refusal:
        image.node_image(tmp_path)
    assert refusal.value.what == str(wheel)
    assert refusal.value.hint == f"rm {wheel}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [image._WHEEL]


def test_a_node_gets_copies_of_what_it_may_change_and_links_of_numpy(tmp_path: Path) -> None:
    built, root = tmp_path / "image", tmp_path / "root"
    for name in ("opt/sglang/site/numpy/a.py", "opt/sglang/site/sglang/b.py"):
        (built / name).parent.mkdir(parents=True)
        (built / name).write_text("x")
    (built / "opt/sglang/python").symlink_to("/usr/bin/python3")
    root.mkdir()
    image.copy_image(built, root)
    links = {
        name: (root / f"opt/sglang/site/{name}").stat().st_nlink for name in ("numpy/a.py", "sglang/b.py")
    }
    assert links == {"numpy/a.py": 2, "sglang/b.py": 1}
    assert (root / "opt/sglang/python").readlink() == Path("/usr/bin/python3")


def test_the_cache_lies_where_its_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("DDTREE_OPS_CACHE", raising=False)
    assert image.cache_directory() == tmp_path / "xdg/ddtree-ops"
    monkeypatch.setenv("DDTREE_OPS_CACHE", str(tmp_path / "own"))
    assert image.cache_directory() == tmp_path / "own"
