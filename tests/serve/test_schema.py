"""The server keeps to its own document: whatever the document allows or forbids is sent, and every answer is in it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.serve.conftest import Server
from tests.serve.test_api import png

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.positive_data_acceptance,
    checks.unsupported_method,
    checks.allow_header_conformance,
]
# Not every string of bytes is a picture, and how long a vector is depends on the gallery.
PICKY = {"POST /api/search", "POST /api/search/vector"}
OPERATIONS = [
    "GET /api/health",
    "GET /metrics",
    "GET /api/gallery",
    "GET /api/count",
    "GET /api/classes",
    "GET /api/items",
    "GET /api/items/{item}",
    "GET /api/items/{item}/thumbnail",
    "GET /api/items/{item}/image",
    "GET /api/items/{item}/neighbours",
    "POST /api/search",
    "POST /api/search/vector",
    "GET /api/pictures/{picture}/neighbours",
    "GET /api/pictures/{picture}/thumbnail",
    "GET /api/map",
]


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    schema.config.update(base_url=server.address)
    return schema


@pytest.fixture(scope="module")
def operations(document: Any) -> dict[str, Any]:
    """What the document describes."""
    return {operation.label: operation for operation in (each.ok() for each in document.get_all_operations())}


@pytest.fixture(scope="module")
def known(server: Server) -> dict[str, str]:
    """An item and a picture that there are."""
    item = server.get("/api/items").json()["items"][0]["id"]
    return {"item": item, "picture": server.post("/api/search", content=png()).json()["query"]["id"]}


def checked(operation: Any) -> list[Any]:
    return [check for check in CHECKS if operation.label not in PICKY or check is not checks.positive_data_acceptance]


def attempts(operation: Any, mode: GenerationMode, number: int, **fixed: Any) -> set[int]:
    """Send so many requests of a kind, and check every answer; the statuses that were seen."""
    seen: set[int] = set()

    @settings(
        max_examples=number, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(operation.as_strategy(mode, **fixed))
    def attempt(case: Any) -> None:
        if case.query and mode is GenerationMode.POSITIVE:
            case.query.pop("where", None)  # a language of its own, which no document of this kind describes
        answer = case.call()
        seen.add(answer.status_code)
        case.validate_response(answer, checks=checked(operation))

    attempt()
    return seen


def has_parameters(operation: Any) -> bool:
    return operation.label.startswith("POST") or bool(operation.definition.raw.get("parameters"))


def test_the_document_is_of_every_address_of_the_api(operations: dict[str, Any]) -> None:
    assert list(operations) == OPERATIONS


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("number", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_what_the_document_allows(operations: dict[str, Any], known: dict[str, str], label: str, number: int) -> None:
    assert attempts(operations[label], GenerationMode.POSITIVE, number)
    fixed = {name: value for name, value in known.items() if f"{{{name}}}" in label}
    if fixed:
        assert 200 in attempts(operations[label], GenerationMode.POSITIVE, number, path_parameters=fixed)


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("number", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_what_the_document_forbids(operations: dict[str, Any], label: str, number: int) -> None:
    if has_parameters(operations[label]):
        assert attempts(operations[label], GenerationMode.NEGATIVE, number) & {400, 422}


@pytest.mark.parametrize("phases", ["examples,coverage", pytest.param("fuzzing,stateful", marks=pytest.mark.slow)])
def test_the_corners_of_the_document(server: Server, tmp_path: Path, phases: str) -> None:
    """The least, the most, one more, what is missing, given twice, of another kind, asked with another method."""
    names = ",".join(check.__name__ for check in CHECKS if check is not checks.positive_data_acceptance)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.address}/openapi.json", "--phases", phases]
    options = ["--checks", names, "--no-color", "--generation-deterministic"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"Tested: {len(OPERATIONS)}" in done.stdout


def test_answers_of_every_day_are_in_the_document(
    server: Server, operations: dict[str, Any], known: dict[str, str]
) -> None:
    item, picture = f"/api/items/{known['item']}", f"/api/pictures/{known['picture']}"
    asked = {
        "GET /api/items/{item}": server.get(item),
        "GET /api/items/{item}/thumbnail": server.get(f"{item}/thumbnail"),
        "GET /api/items/{item}/image": server.get(f"{item}/image"),
        "GET /api/items/{item}/neighbours": server.get(f"{item}/neighbours"),
        "POST /api/search": server.post("/api/search", content=png()),
        "POST /api/search/vector": server.post("/api/search/vector", json={"vector": [1.0] * 16}),
        "GET /api/pictures/{picture}/neighbours": server.get(f"{picture}/neighbours"),
        "GET /api/pictures/{picture}/thumbnail": server.get(f"{picture}/thumbnail"),
        "GET /api/map": server.get("/api/map"),
        "GET /metrics": server.get("/metrics"),
    }
    for label, answer in asked.items():
        assert answer.status_code == 200
        operations[label].validate_response(answer)
