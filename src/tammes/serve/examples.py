"""The document of the JSON API as a person reads it: each route with a command to type."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tammes.serve.state import Site


@dataclass(frozen=True)
class Route:
    """One way to ask."""

    method: str
    path: str
    summary: str
    parameters: tuple[tuple[str, str, str], ...]
    """Name, kind and meaning."""
    command: str


def examples(document: Mapping[str, Any], site: Site, base: str) -> dict[str, list[Route]]:
    """The routes of an OpenAPI document by what they are about, with commands that work as they stand."""
    sample = site.gallery.catalogue.ids[0] if site.has_gallery and len(site.gallery.catalogue) else "0" * 16
    found: dict[str, list[Route]] = {}
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            parameters = tuple(
                (each["name"], _kind(each["schema"]), each.get("description", ""))
                for each in said.get("parameters", ())
            )
            route = Route(
                method.upper(), path, said["description"], parameters, _command(method, path, sample, site, base)
            )
            found.setdefault(said["tags"][0], []).append(route)
    order = ["search", "gallery", "pictures", "server"]
    return {name: found[name] for name in order if name in found}


def _kind(schema: Mapping[str, Any]) -> str:
    kinds = [each.get("type", "") for each in schema.get("anyOf", [schema])]
    said = " or ".join(kind for kind in kinds if kind != "null")
    if "minimum" in schema and "maximum" in schema and schema["maximum"] <= 1000:
        said += f", {schema['minimum']} to {schema['maximum']}"
    return f"{said}, default {schema['default']}" if schema.get("default") not in (None, "") else said


def _command(method: str, path: str, sample: str, site: Site, base: str) -> str:
    address = path.replace("{item}", sample).replace("{picture}", "ID")
    words = ["curl"]
    if site.token is not None and path != "/api/health":
        words += ["-H", "Authorization: Bearer TOKEN"]
    if path == "/api/search":
        words += ["-F", "image=@photo.jpg"]
        address += "?k=8"
    elif path == "/api/search/vector":
        dim = site.gallery.opened.store.about.dim
        words += ["--json", '{"vector": [0.1, …], "k": 8}'.replace("…", f"… {dim} numbers in all")]
    elif method == "get" and path.endswith("/neighbours"):
        address += "?k=8"
    if path.endswith(("/thumbnail", "/image")):
        words += ["-o", "picture" if path.endswith("/image") else "thumbnail.webp"]
    return shlex.join([*words, f"{base}{address}"])
