"""Models go to the hub and come back: huggingface_hub against a stand-in of its HTTP API, in a process of its own."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tammes import UserError
from tammes.io.hub import fetched, push_to_hub
from tests.hub_stand_in import FULL, GONE, TIRED, TOKEN, StandIn, standing_in


@pytest.fixture
def run(printed_by: Callable[..., str]) -> Callable[..., str]:
    """What a program prints whose hub is the stand-in; huggingface_hub reads the environment as it is imported."""

    def ask(code: str, hub: StandIn, home: Path) -> str:
        own = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home),
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        return printed_by(code, environment=own)

    return ask


def test_a_model_goes_to_the_hub_and_comes_back(tmp_path: Path, run: Callable[..., str]) -> None:
    with standing_in() as hub:
        printed = run(
            f"""
            import numpy as np, torch, timm, tammes
            from pathlib import Path
            from tammes.models.embedder import Embedder, EmbedderConfig
            from tammes.export.hub_folder import Card, write_hub_folder

            torch.manual_seed(0)
            for name, config in (
                ("waves", EmbedderConfig("conv4", 8)), ("birds", EmbedderConfig("timm:mobilenetv3_small_050", 8))
            ):
                folder = Path({str(tmp_path)!r}) / name
                network = Embedder(config).eval()
                write_hub_folder(folder, network, Card(name, "data", "loss"))
                print(tammes.push_to_hub(folder, f"anna/{{name}}", private=True))
                other = tammes.load(f"hf://anna/{{name}}")
                images = torch.rand(2, len(network.mode), network.size, network.size) * 255
                with torch.inference_mode():
                    print(float((other(images) - network(images)).abs().max()))
            theirs = timm.create_model("hf-hub:anna/birds", pretrained=True).eval()
            with torch.inference_mode():
                vectors = torch.nn.functional.normalize(theirs(network.normalised(images)))
                print(float((vectors - network(images)).abs().max()) < 1e-5)
            tammes.push_to_hub(folder, "anna/birds")  # again: it is there already
            try:
                tammes.load("hf://anna/nothing")
            except tammes.UserError as error:
                print(error)
            """,
            hub,
            tmp_path / "home",
        )
        files = {name: sorted(found) for name, found in hub.models.items()}
        assert hub.private == {"anna/waves": True, "anna/birds": True}
    assert printed.splitlines() == [
        "hf://anna/waves",
        "0.0",
        "hf://anna/birds",
        "0.0",
        "True",
        "no model anna/nothing on the hub, or it is private: log in with `hf auth login`.",
    ]
    assert files["anna/waves"] == ["README.md", "config.json", "model.safetensors"]


def test_a_model_of_the_hub_takes_the_place_of_a_run(tmp_path: Path, run: Callable[..., str]) -> None:
    with standing_in() as hub:
        printed = run(
            f"""
            import json, sys, torch, tammes, numpy as np
            from contextlib import redirect_stdout
            from io import StringIO
            from pathlib import Path
            from PIL import Image
            from tammes.cli import main
            from tammes.export.hub_folder import Card, write_hub_folder
            from tammes.models.embedder import Embedder, EmbedderConfig

            def typed(*words):
                with redirect_stdout(StringIO()) as said:
                    main([*words, "--json"])
                return json.loads(said.getvalue())

            here, model = Path({str(tmp_path)!r}), "hf://anna/waves"
            torch.manual_seed(0)
            write_hub_folder(here / "waves", Embedder(EmbedderConfig("conv4", 8)).eval(), Card("waves", "data", "loss"))
            tammes.push_to_hub(here / "waves", "anna/waves")
            photos, gallery = str(here / "photos"), str(here / "gallery")
            for number in range(8):
                folder = here / "photos" / f"class {{number % 2}}"
                folder.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng(number).integers(0, 256, (28, 28), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{{number}}.png")
            print(typed("index", model, photos, "--gallery", gallery)["added"])
            print(typed("embed", model, photos, "--out", str(here / "v.npz"))["dim"])
            print(*typed("evaluate", model, photos))
            query = str(here / "photos" / "class 0" / "0.png")
            (found,) = typed("search", gallery, query, "-k", "1", "--model", model)["queries"]
            print(round(found["found"][0]["distance"], 3))
            print(len(typed("label", gallery, photos, "--model", model, "--threshold", "1")["images"]))
            """,
            hub,
            tmp_path / "home",
        )
    assert printed.splitlines() == ["8", "8", "trained", "0.0", "8"]


def test_a_push_that_fails_says_why_and_to_log_in_only_where_that_helps(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    with standing_in() as hub:
        code = f"""
            import huggingface_hub, tammes

            def push(name):
                try:
                    tammes.push_to_hub({str(tmp_path)!r}, name)
                except tammes.UserError as error:
                    print(error)

            push({FULL!r})
            huggingface_hub.constants.HF_TOKEN, huggingface_hub.utils._headers.get_token = "wrong", lambda: "wrong"
            push("anna/waves")
            huggingface_hub.constants.ENDPOINT = "http://127.0.0.1:9"
            push("anna/waves")
            """
        full, untrusted, alone = run(code, hub, tmp_path / "home").splitlines()
    assert full.startswith("cannot push to anna/full: the hub says 413, ")
    assert "log in" not in full.lower()
    assert untrusted == (
        "cannot push to anna/waves: the hub says 401, you may not write there. Log in with `hf auth login`."
    )
    assert alone.startswith("cannot push to anna/waves: the hub cannot be reached (")
    assert "log in" not in alone.lower()


def test_a_model_that_cannot_be_fetched_says_why(tmp_path: Path, run: Callable[..., str]) -> None:
    with standing_in() as hub:
        code = f"""
            import huggingface_hub, tammes

            def load(name):
                try:
                    tammes.load(f"hf://{{name}}")
                except tammes.UserError as error:
                    print(error)

            load({TIRED!r})
            load({GONE!r})
            huggingface_hub.constants.ENDPOINT = "http://127.0.0.1:9"
            load("anna/waves")
            """
        tired, gone, alone = run(code, hub, tmp_path / "home").splitlines()
    assert tired.startswith("cannot fetch anna/tired from the hub: ")
    assert "403" in tired
    assert gone == "cannot reach the hub for anna/gone, and it is not in the cache. Try again when you are online."
    assert alone == "cannot reach the hub for anna/waves, and it is not in the cache. Try again when you are online."


def test_names_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^a model on the hub is named hf://owner/name, .*got 'waves'.$"):
        fetched("hf://waves")
    with pytest.raises(UserError, match="^a model on the hub is named owner/name, .*got 'a/b/c'.$"):
        push_to_hub(tmp_path, "a/b/c")
    with pytest.raises(
        UserError, match=f"^{re.escape(str(tmp_path))} is not ready for the hub. Write it: tammes export"
    ):
        push_to_hub(tmp_path, "anna/waves")
