"""The inventory file: hosts, groups and profiles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from ruamel.yaml.comments import CommentedMap

from ddtree_ops.config import yamlfile
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.host import Host
from ddtree_ops.model.profile import MODULE, Profile

SERVICE = r"^[A-Za-z0-9][A-Za-z0-9:_.@-]*$"  # what systemd accepts in a unit name, less the escapes
ADDRESS = re.compile(r"^(?:(?P<user>[^@\s]+)@)?(?P<address>\[[0-9A-Fa-f:.]+\]|[^@:\s]+)(?::(?P<port>\d+))?$")

Absolute = Annotated[str, Field(pattern=r"^/[^\n]*$")]
Word = Annotated[str, Field(min_length=1, pattern=r"^[^\n]+$")]
Port = Annotated[int, Field(ge=1, le=65535)]


class HostKeys(BaseModel):
    """What a host, or `defaults`, may say."""

    model_config = ConfigDict(extra="forbid", strict=True)

    address: Word | None = None
    port: Port | None = None
    user: Word | None = None
    identity_file: Word | None = None
    known_hosts: Word | None = None
    jump: Word | None = None
    sudo: bool | None = None
    service: Annotated[str, Field(pattern=SERVICE)] | None = None
    profile: Word | None = None
    lease_s: Annotated[float, Field(ge=5, strict=False)] | None = None
    connect_timeout_s: Annotated[float, Field(gt=0, le=300, strict=False)] | None = None
    dead_after_s: Annotated[float, Field(ge=2, le=600, strict=False)] | None = None


class ProfileKeys(BaseModel):
    """What a profile may say; defaults are the model's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    service: Annotated[str, Field(pattern=SERVICE)]
    venv: Absolute
    model: Word
    port: Port
    host: Word = "127.0.0.1"
    launcher: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")] = MODULE
    drafter: Word | None = None
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    budget: Annotated[int, Field(ge=1, le=4096)] | None = None
    topk: Annotated[int, Field(ge=1)] | None = None
    cuda_graph: bool = True
    graph_max_batch: Annotated[int, Field(ge=1)] | None = None
    patches: list[Word] | None = None
    extra_flags: list[str] = []
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str] = {}
    environment_file: Absolute | None = None
    user: Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*\$?$")] | None = None
    working_directory: Absolute | None = None
    limits: dict[Annotated[str, Field(pattern=r"^Limit[A-Z]+$")], Word] | None = None
    load_timeout_s: Annotated[int, Field(ge=1)] = 1800
    stop_timeout_s: Annotated[int, Field(ge=1)] = 180


HOST = TypeAdapter(HostKeys)
PROFILE = TypeAdapter(ProfileKeys)
NAMES = TypeAdapter(Annotated[list[Word], Field(min_length=1)])
NO_DEFAULTS = Host(name="defaults")
SECTIONS = ("defaults", "hosts", "groups", "profiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Hosts, groups and profiles by name; `file` is where they came from, for messages."""

    file: str = "no inventory file"
    hosts: dict[str, Host] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    defaults: Host = NO_DEFAULTS

    def resolve(self, name: str) -> tuple[Host, ...]:
        """The hosts behind an inventory name, a group, `user@addr:port`, or an ssh_config alias."""
        if name in self.hosts:
            return (self.hosts[name],)
        if name in self.groups:
            return tuple(self.hosts[member] for member in self.groups[name])
        match = ADDRESS.match(name)
        if match is None or name.startswith("-"):
            raise UsageError("--host", f"got {name!r}, expected an inventory name or user@address:port")
        if match["user"] is None and match["port"] is None:
            return (replace(self.defaults, name=name),)
        address = match["address"].strip("[]")
        port = int(match["port"]) if match["port"] else self.defaults.port
        return (
            replace(
                self.defaults,
                name=name,
                address=address,
                port=port,
                user=match["user"] or self.defaults.user,
            ),
        )

    def profile(self, name: str) -> Profile:
        try:
            return self.profiles[name]
        except KeyError:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise UsageError(f"{self.file}: profiles", f"got {name!r}, expected one of: {known}") from None


def parse_inventory(text: str, file: str) -> Inventory:
    """Reads an inventory; raises UsageError with file:line:key."""
    document = yamlfile.parse(text, file)
    for key in document:
        if key not in SECTIONS:
            expected = f"got an unknown key, expected one of {', '.join(SECTIONS)}"
            raise yamlfile.complaint(document, file, (key,), expected)
    defaults = _host("defaults", document, file, ("defaults",), NO_DEFAULTS)
    profiles = {
        str(name): _profile(str(name), document, file) for name in _section(document, file, "profiles")
    }
    hosts = {
        str(name): _host(str(name), document, file, ("hosts", name), defaults)
        for name in _section(document, file, "hosts")
    }
    groups = {str(name): _group(name, document, file, hosts) for name in _section(document, file, "groups")}
    for name, host in hosts.items():
        if host.profile is not None and host.profile not in profiles:
            known = ", ".join(sorted(profiles)) or "none"
            path = (
                ("hosts", name, "profile")
                if "profile" in (document["hosts"][name] or {})
                else ("defaults", "profile")
            )
            raise yamlfile.complaint(document, file, path, f"got {host.profile!r}, expected one of: {known}")
    return Inventory(file=file, hosts=hosts, groups=groups, profiles=profiles, defaults=defaults)


def _section(document: CommentedMap, file: str, name: str) -> CommentedMap:
    section = document.get(name)
    if section is None:
        return CommentedMap()
    if not isinstance(section, CommentedMap):
        raise yamlfile.complaint(document, file, (name,), f"got {section!r}, expected a mapping of names")
    return section


def _host(name: str, document: CommentedMap, file: str, path: tuple[str, ...], base: Host) -> Host:
    node: Any = document
    for part in path:
        node = node.get(part) if isinstance(node, CommentedMap) else None
    keys = yamlfile.validate(HOST, document, node if node is not None else {}, file, path)
    given = {key: value for key, value in keys.model_dump().items() if value is not None}
    return replace(base, name=name, **given)


def _profile(name: str, document: CommentedMap, file: str) -> Profile:
    keys = yamlfile.validate(PROFILE, document, document["profiles"][name], file, ("profiles", name))
    values = keys.model_dump()
    for key in ("environment", "limits"):
        values[key] = None if values[key] is None else tuple(values[key].items())
    for key in ("patches", "extra_flags"):
        values[key] = None if values[key] is None else tuple(values[key])
    known = {field_.name for field_ in fields(Profile)}
    given = {key: value for key, value in values.items() if key in known and value is not None}
    return Profile(name=name, **given)


def _group(name: str, document: CommentedMap, file: str, hosts: dict[str, Host]) -> tuple[str, ...]:
    members = yamlfile.validate(NAMES, document, document["groups"][name], file, ("groups", name))
    for index, member in enumerate(members):
        if member not in hosts:
            known = ", ".join(sorted(hosts)) or "none"
            raise yamlfile.complaint(
                document, file, ("groups", name, index), f"got {member!r}, expected one of: {known}"
            )
    return tuple(members)
