"""SGLang on a node: version, sources, and the flags that its own ServerArgs takes."""

from __future__ import annotations

import ast
import glob
import os

from .base import Json
from .packages import distribution, editable_package, node_files, site_folders, verify_record

OUR_FLAG = "--speculative-ddtree-budget"
ANNOTATED = ("A", "Annotated")


def sglang_facts(venv: str, launcher: str, read: list[str]) -> Json:
    """The fields of model.facts.Sglang."""
    folders = site_folders(venv)
    version, info = distribution(folders, "sglang")
    editable = editable_package(info) if info else None
    package = editable or _package_in(folders)
    modified = None
    if info and package and not editable:
        modified = verify_record(info, package)
    flags, source = server_flags(folders, launcher, package)
    return {
        "version": version,
        "package": package,
        "sources": _sources(package, modified),
        "editable": editable is not None,
        "modified": _modified(package, modified or {}) if package else [],
        "files": node_files(package, [path for path in read if _is_below(path)]) if package else [],
        "ddtree": ddtree_kind(flags, source),
        "known_flags": sorted(flags),
        "torch": distribution(folders, "torch")[0],
        "triton": distribution(folders, "triton", "pytorch_triton")[0],
        "kernel": distribution(folders, "sglang_kernel", "sgl_kernel")[0],
    }


def _modified(package: str, promised: dict[str, str | None]) -> list[Json]:
    found = node_files(package, list(promised))
    return [{**file, "recorded": promised[file["path"]]} for file in found]


def _package_in(folders: list[str]) -> str | None:
    return next((folder for folder in folders if os.path.isdir(os.path.join(folder, "sglang"))), None)


def _sources(package: str | None, modified: dict[str, str | None] | None) -> str:
    """Patched is for the operator's side to say: it knows the patch sets."""
    if package is None:
        return "missing"
    if modified is None:
        return "unverified"
    return "modified" if modified else "stock"


def _is_below(path: str) -> bool:
    return path.startswith("sglang/") and ".." not in path.split("/")


def server_flags(folders: list[str], launcher: str, package: str | None) -> tuple[set[str], str]:
    """(flags, source text) of the launcher's own server_args.py, else of sglang's."""
    top = launcher.split(".")[0]
    candidates = [os.path.join(folder, top, "server_args.py") for folder in folders if top]
    if package is not None:
        candidates.append(os.path.join(package, "sglang/srt/server_args.py"))
    for path in candidates:
        # later releases keep ServerArgs' fields in files of their own
        fields = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "arg_groups/fields/*.py")))
        try:
            sources = [_source(part) for part in (path, *fields)]
            flags = flags_in(sources[0]).union(*(_annotated_flags(ast.parse(part)) for part in sources[1:]))
        except (OSError, ValueError, SyntaxError):
            continue
        return flags, "\n".join(sources)
    return set(), ""


def _source(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def flags_in(source: str) -> set[str]:
    """Every `--flag` that ServerArgs adds to a parser or annotates; where neither, one for each field."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    wanted = [node for node in classes if node.name == "ServerArgs"] or classes
    flags = {flag for node in wanted for flag in _added_flags(node) | _annotated_flags(node)}
    return flags or {flag for node in wanted for flag in _field_flags(node)}


def _annotated_flags(tree: ast.AST) -> set[str]:
    """Flags of fields like `tp_size: A[int, Arg(cli_name="--tp", aliases=["--tp-size"])] = 1`."""
    flags: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        hint = node.annotation
        if (
            isinstance(hint, ast.Subscript)
            and isinstance(hint.value, ast.Name)
            and hint.value.id in ANNOTATED
        ):
            flags |= _flags_of_field(node.target.id, hint)
    return flags


def _flags_of_field(name: str, hint: ast.Subscript) -> set[str]:
    calls = [part for part in ast.walk(hint) if isinstance(part, ast.Call)]
    said = {word.arg: word.value for call in calls for word in call.keywords}
    hidden = said.get("no_cli")
    if isinstance(hidden, ast.Constant) and hidden.value is True:
        return set()
    named = [part for key in ("cli_name", "aliases") if key in said for part in ast.walk(said[key])]
    flags = {part.value for part in named if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return (
        flags if isinstance(said.get("cli_name"), ast.Constant) else {*flags, "--" + name.replace("_", "-")}
    )


def _added_flags(node: ast.ClassDef) -> set[str]:
    """String literals that begin with -- in calls' arguments: add_argument's names, and aliases."""
    words = [argument for call in ast.walk(node) if isinstance(call, ast.Call) for argument in call.args]
    texts = {word.value for word in words if isinstance(word, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and text.startswith("--") and " " not in text}


def _field_flags(node: ast.ClassDef) -> set[str]:
    fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    return {"--" + field.id.replace("_", "-") for field in fields if isinstance(field, ast.Name)}


def ddtree_kind(flags: set[str], source: str) -> str:
    """By which flags this SGLang takes a draft tree: model.facts.DdtreeFlags."""
    if OUR_FLAG in flags:
        return "ours"
    if '"DDTREE"' in source or "'DDTREE'" in source:
        return "algorithm"
    return "other" if any("ddtree" in flag for flag in flags) else "none"
