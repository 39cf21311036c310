"""The page about the JSON API: each route with a command to copy."""

import shlex
from collections.abc import Mapping
from typing import Any

from tammes.serve.state import ServerState


def examples(document: Mapping[str, Any], state: ServerState, base: str) -> dict[str, list[dict[str, Any]]]:
    """The routes of an OpenAPI document by what they are about, with commands that work as they stand."""
    sample = state.gallery.rows.ids[0] if state.has_gallery and len(state.gallery) else "0" * 16
    found: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            route = {
                "method": method.upper(),
                "path": path,
                "summary": about["description"],
                "parameters": [
                    (each["name"], _kind(each["schema"]), each.get("description", ""))
                    for each in about.get("parameters", ())
                ],
                "command": _command(method, path, sample, state, base),
            }
            found.setdefault(about["tags"][0], []).append(route)
    order = ["search", "gallery", "pictures", "server"]
    return {name: found[name] for name in order if name in found}


def _kind(schema: Mapping[str, Any]) -> str:
    kinds = [each.get("type", "") for each in schema.get("anyOf", [schema])]
    text = " or ".join(kind for kind in kinds if kind != "null")
    if "minimum" in schema and "maximum" in schema and schema["maximum"] <= 1000:
        text += f", {schema['minimum']} to {schema['maximum']}"
    return f"{text}, default {schema['default']}" if schema.get("default") not in (None, "") else text


def _command(method: str, path: str, sample: str, state: ServerState, base: str) -> str:
    address = path.replace("{item}", sample).replace("{picture}", "ID")
    words = ["curl"]
    if state.token is not None and path != "/api/health":
        words += ["-H", "Authorization: Bearer TOKEN"]
    if path == "/api/search":
        words += ["-F", "image=@photo.jpg"]
        address += "?k=8"
    elif path == "/api/search/vector":
        dim = state.gallery.store.about.dim
        words += ["--json", '{"vector": [0.1, …], "k": 8}'.replace("…", f"… {dim} numbers in all")]
    elif method == "get" and path.endswith("/neighbours"):
        address += "?k=8"
    if path.endswith(("/thumbnail", "/image")):
        words += ["-o", "picture" if path.endswith("/image") else "thumbnail.webp"]
    return shlex.join([*words, f"{base}{address}"])
