"""What a probe brings back from real nodes with the real sglang 0.5.11 in their venv, and verbs on full disks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddtree_ops.lab.hosts import Kind, Lab
from ddtree_ops.model.errors import Failed
from ddtree_ops.model.facts import Sources
from ddtree_ops.model.patch import PatchedFile
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Release
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import SshLink, SshTarget

from .conftest import Node as LabNode

BACKEND = "sglang/srt/layers/attention/triton_backend.py"


@pytest.fixture
def link(lab: Lab) -> Iterator[SshLink]:
    host = lab.status()[0]
    target = SshTarget(
        name=host.name,
        address=host.address,
        port=host.port,
        user=host.user,
        identity_file=str(host.identity_file),
        known_hosts=(str(host.known_hosts),),
        ssh_config="/dev/null",
    )
    with lab.entered(), SshLink(target) as opened:
        yield opened


def release(name: str) -> Release:
    profile = Profile(name="p", service="svc", venv="/opt/sglang", model="/m", port=1)
    return Release(
        id=name, fingerprint=name, profile=profile, sglang="0.5.11", patches=(), unit_sha256="", site=True,
        created="2026-01-01T00:00:00Z", by="ann",
    )  # fmt: skip


def test_one_round_trip_tells_all_of_a_node(link: SshLink, node: LabNode) -> None:
    host = node.host
    facts = Node(host.name, link, "sglang-ddtree").probe(
        venv=host.venv,
        launcher="reference_engine.launch_server",
        model=host.target,
        paths=(host.venv, "/no/such/path"),
        read=(BACKEND,),
    )
    assert link.round_trips == 1
    assert (facts.sglang.version, facts.sglang.sources, facts.sglang.modified) == (
        "0.5.11",
        Sources.STOCK,
        (),
    )
    (backend,) = facts.sglang.files
    assert backend.text is not None
    assert "speculative_num_draft_tokens" in backend.text
    assert facts.paths == ((host.venv, True), ("/no/such/path", False))
    assert (facts.state_dir, facts.unit_dir) == (host.state_dir, host.unit_dir)
    assert facts.unit.path == f"{host.unit_dir}/sglang-ddtree.service"
    assert [unit.name for unit in facts.engines] == ["sglang-ddtree.service"]
    assert facts.root
    assert abs(facts.clock_skew_s) < 1
    assert (facts.gpus, facts.gpu_note) == ((), "nvidia-smi is not on this node")
    assert facts.systemd is not None
    assert facts.venv_python is not None


def test_a_staged_tree_is_the_installed_one_but_for_the_patched_file(link: SshLink, node: LabNode) -> None:
    host = node.host
    one = Node(host.name, link, "svc")
    base = one.probe(venv=host.venv).sglang.package
    assert one.stage(
        release("1"),
        "[Service]\n",
        base=base,
        files=(PatchedFile(path=BACKEND, before="", after="# ours\n"),),
    )
    site = f"{host.state_dir}/svc/releases/1/site"
    done = node.sh("diff", "-rq", "-x", "__pycache__", f"{base}/sglang", f"{site}/sglang")
    assert done.out == f"Files {base}/{BACKEND} and {site}/{BACKEND} differ\n"
    assert one.probe(venv=host.venv).sglang.sources is Sources.STOCK
    node.shell(f"rm -rf {host.state_dir}/svc")


def test_a_line_changed_by_hand_is_found_and_comes_back(link: SshLink, node: LabNode) -> None:
    host = node.host
    one = Node(host.name, link, "svc")
    path = f"{one.probe(venv=host.venv).sglang.package}/{BACKEND}"
    node.shell(f"cp {path} {path}.kept; echo '# by hand' >> {path}")
    try:
        sglang = one.probe(venv=host.venv).sglang
    finally:
        node.shell(f"mv {path}.kept {path}")
    assert sglang.sources is Sources.MODIFIED
    assert [(file.path, (file.text or "")[-10:]) for file in sglang.modified] == [(BACKEND, "# by hand\n")]


@pytest.mark.parametrize("lab", [pytest.param(Kind.SYSTEMD, marks=pytest.mark.systemd)], indirect=True)
class TestDisks:
    """File systems that refuse, mounted for the test: needs root on the node."""

    @pytest.fixture(params=["full", "read-only"])
    def refusing(self, request: pytest.FixtureRequest, node: LabNode) -> Iterator[str]:
        state = "/var/lib/ddtree-ops/svc"
        node.shell(
            f"mkdir -p {state}; mount -t tmpfs -o size=64k none {state}; mkdir {state}/releases; echo '{{}}' > {state}/.mutex"
        )
        if request.param == "full":
            node.shell(f"head -c 1m /dev/zero > {state}/filler")
        else:
            node.shell(f"mount -o remount,ro {state}")
        yield str(request.param)
        node.shell(f"umount {state}; rm -rf {state}")

    def test_each_verb_that_writes_says_so_and_leaves_things_alone(
        self, link: SshLink, node: LabNode, refusing: str
    ) -> None:
        one = Node("n1", link, "svc")
        before = node.shell("find /var/lib/ddtree-ops/svc /etc/systemd/system | sort").out
        verbs = (
            lambda: one.lock(who="ann", run="r", ttl_s=5),
            lambda: one.found(release("0")),
            lambda: one.stage(release("1"), "[Service]\n"),
            lambda: one.arm(run="r", by="ann", release="1", previous="0", lease_s=60, proof=None),
        )
        for verb in verbs:
            with pytest.raises(
                Failed, match="no space left" if refusing == "full" else "read-only"
            ) as caught:
                verb()
            assert caught.value.hint
        assert node.shell("find /var/lib/ddtree-ops/svc /etc/systemd/system | sort").out == before
