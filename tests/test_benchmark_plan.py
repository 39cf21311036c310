"""The file of a benchmark: what it may say, and what is answered where it says something else."""

from pathlib import Path

import pytest

from tammes.benchmark import tables as benchmark_tables
from tammes.benchmark.cells import table_cells
from tammes.benchmark.plan import Plan, read_plan
from tammes.benchmark.published import published, published_table
from tammes.benchmark.runner import check_options
from tammes.cli import main
from tammes.errors import UserError

ROOT = Path(__file__).parents[1]
SHORTEST = 'data = "glyphs"\n[[method]]\nname = "one"\n'


def plan(folder: Path, text: str) -> Plan:
    file = folder / "plan.toml"
    file.write_text(text)
    return read_plan(file)


def test_the_shortest_plan_has_the_usual_for_the_rest(tmp_path: Path) -> None:
    found = plan(tmp_path, SHORTEST)
    assert (found.title, found.data, found.presets, found.seeds) == ("plan", "glyphs", ("default",), (0, 1, 2))
    assert (found.layers, found.search, found.paper, found.train) == (("penultimate",), None, None, {})
    assert found.options(found.methods[0]) == {"loss": "discriminative", "embedding": "penultimate"}


def test_a_plan_with_everything(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        """
        title = "birds"
        data = "CUB_200_2011"
        presets = ["paper", "default"]
        seeds = [3, 1]
        layers = ["last", "penultimate"]
        paper = "layers-cub"
        [train]
        batch-size = 16
        val_classes = 0.25
        mirror = false
        [search]
        lr = [1, 0.1]
        quarters = [2]
        seed = 7
        [[method]]
        name = "Ours (π)"
        push = 0
        paper = { penultimate = "Second to last layer", last = "Last layer" }
        [[method]]
        name = "hard"
        loss = "hard-discriminative"
        search = { temperature = [0.1, 0.3] }
        paper = "Last layer"
        """,
    )
    assert found.train == {"batch_size": 16, "val_classes": "0.25", "mirror": False}
    assert found.search is not None
    assert (found.search.lr, found.search.quarters, found.search.seed) == ((1.0, 0.1), (2,), 7)
    ours, hard = found.methods
    assert (ours.slug, ours.options, ours.search) == ("ours-π", {"loss": "discriminative", "push": 0.0}, {})
    assert ours.paper == {"penultimate": "Second to last layer", "last": "Last layer"}
    assert (hard.search, hard.paper) == ({"temperature": (0.1, 0.3)}, {"last": "Last layer"})
    assert found.options(hard)["embedding"] == "last"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data = ", "is not TOML"),
        ('name = "x"\n' + SHORTEST, "unknown key 'name'. Known: data, layers"),
        ('sedes = [1]\n' + SHORTEST, "unknown key 'sedes'. Did you mean 'seeds'?"),
        ('[[method]]\nname = "one"\n', "data is missing."),
        (SHORTEST.replace("glyphs", "vectors.npz"), "holds vectors, and benchmarks are for images"),
        ('data = "glyphs"\n', "method is missing."),
        ('data = "glyphs"\nmethod = []\n', "method must be a list of one value or more, got []."),
        ('data = "glyphs"\n[[method]]\npush = 0.1\n', "[[method]] name is missing."),
        ("seeds = 3\n" + SHORTEST, "seeds must be a list, got 3."),
        ("seeds = [1, 1]\n" + SHORTEST, "seeds has a value twice"),
        ("seeds = [-1]\n" + SHORTEST, "seeds[0] must be greater than or equal to 0, got -1."),
        (f"seeds = [{10**26}]\n" + SHORTEST, f"seeds is too large: {10**26}. A whole number must be from -2**63"),
        ("seeds = [0x" + 5000 * "f" + "]\n" + SHORTEST, "seeds is too large: a number of thousands of digits."),
        ("seeds = [" + 5000 * "9" + "]\n" + SHORTEST, "holds a number of thousands of digits. A whole number must be"),
        (SHORTEST + f"[train]\nepochs = {10**26}\n", f"train epochs is too large: {10**26}."),
        (SHORTEST + "[search]\nlr = [1]\nseed = -1\n", "[search] seed must be greater than or equal to 0, got -1."),
        ('data = "glyphs"\n[[method]]\nname = ""\n', "[[method]] name must be a line of up to 200 letters"),
        ('data = "glyphs"\n[[method]]\nname = "\\u0000"\n', "as it is that of a folder too; got '\\x00'."),
        ('data = "glyphs"\n[[method]]\nname = "' + 201 * "x" + '"\n', "[[method]] name must be a line"),
        ("seeds = [true]\n" + SHORTEST, "seeds[0] must be a whole number, got True."),
        ('presets = ["best"]\n' + SHORTEST, "presets[0] must be 'default' or 'paper', got 'best'."),
        ('layers = ["first"]\n' + SHORTEST, "layers[0] must be 'penultimate' or 'last', got 'first'."),
        ('paper = "cup"\n' + SHORTEST, "unknown table of the paper 'cup'. Did you mean 'cub'?"),
        (SHORTEST + "push = \"far\"\n", "method 'one': push must be a number, got 'far'."),
        (SHORTEST + "mirrored = true\n", "one': 'mirrored' is not an option of tammes train. Did you mean 'mirror'?"),
        (SHORTEST + "epochs = 3\n", "method 'one': epochs must be the same for all: put it in [train]."),
        (SHORTEST + "seed = 3\n", "method 'one': seed is not for here: it belongs in seeds, at the top of the file."),
        (SHORTEST + "batch-size = 1\nbatch_size = 2\n", "given twice, with - and with _"),
        (SHORTEST + "search = { push = [0.1] }\n", "search needs a table [search] with lr"),
        (SHORTEST + 'paper = "x"\n', "paper names a row, but the file does not say of which table"),
        ('paper = "cub"\n' + SHORTEST + 'paper = "x"\n', "paper has no row 'x'. Its rows: Softmax, Semi-hard"),
        ('paper = "cub"\n' + SHORTEST + "paper = 3\n", "[[method]] paper must be a text, got 3."),
        ('paper = "cub"\n' + SHORTEST + 'paper = { last = "Softmax" }\n', "method 'one': paper: unknown layer 'last'"),
        (SHORTEST + '[[method]]\nname = "One!"\n', "'one' and 'One!' would share a folder"),
        (SHORTEST + "[search]\nlrs = [1]\n", "[search] unknown key 'lrs'. Did you mean 'lr'?"),
        (SHORTEST + "[search]\nquarters = [1]\n", "[search] lr is missing."),
        (SHORTEST + "[search]\nlr = [1]\nquarters = [4]\n", "quarters[0] must be 0, 1, 2 or 3, got 4."),
        (SHORTEST + "[search]\nlr = [1]\n[train]\nlr = 1\n", "lr is given in [train] and searched for"),
        (SHORTEST + "lr = 2\n[search]\nlr = [1]\n", "method 'one': lr is searched for in [search]"),
        (SHORTEST + "search = { push = [1], dim = [2] }\n[search]\nlr = [1]\n", "hyper-parameter, got dim, push"),
        (SHORTEST + "search = { lr = [1, 2] }\n[search]\nlr = [1]\n", "2 values of lr, and [search] has 1"),
        (SHORTEST + "seeds = [3]\n", "method 'one': seeds has 3, and seeds at the top"),
        (SHORTEST + "[search]\nlr = [1]\n[search.train]\nepoch = 1\n", "'epoch' is not an option"),
        ('rates_from = "x"\n' + SHORTEST + "[search]\nlr = [1]\n", "rates_from = 'x' and [search] both"),
        ('rates_from = "x"\n' + SHORTEST, "cannot read the plan"),
        ('rates_from = "plan"\n' + SHORTEST, "there is no [search], so no rates can be taken over"),
        (SHORTEST + "[train]\ncurve = [1.5]\n", "curve[0] must be a whole number, got 1.5"),
        (SHORTEST + "search = { epochs = [1] }\n[search]\nlr = [1]\n", "search: cannot be of epochs"),
        (SHORTEST + "push = 0\nsearch = { push = [1] }\n[search]\nlr = [1]\n", "cannot be of push: it is given"),
        (
            SHORTEST + 'loss = "lifted"\nmargin = 0.2\nsearch = { margin = [1] }\n[search]\nlr = [1]\n',
            "cannot be of margin: it is given",
        ),
        (SHORTEST + 'loss = "lifted"\nmargin = "wide"\n', "method 'one': margin of lifted structure must be a finite"),
        (SHORTEST + 'loss = "liftd"\n', "method 'one': unknown loss 'liftd'. Did you mean 'lifted'?"),
        (SHORTEST + 'loss = "lifted"\ncolour = 1\n', "'colour' is not an option of tammes train."),
        (
            SHORTEST + 'loss = "lifted"\nloss-options = ["margin=1"]\n',
            "loss-options is not for here: it belongs in the method by their own names, such as margin = 0.2.",
        ),
        (SHORTEST + "search = { pull = [1] }\n[search]\nlr = [1]\n", "'pull' is not an option of tammes train"),
        ('layers = ["last"]\n' + SHORTEST + "class-layer = false\n", "without a class layer there is no layer 'last'"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_plan_is_said_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        plan(tmp_path, text)
    assert said in str(refused.value)
    assert str(tmp_path / "plan.toml") in str(refused.value)


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the plan .*none.toml: No such file"):
        read_plan(tmp_path / "none.toml")


PLANS = sorted((ROOT / "benchmarks" / "plans").glob("*.toml"))


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_the_plans_that_come_with_the_code_are_plans(file: Path, tmp_path: Path) -> None:
    found = read_plan(file)
    check_options(found, table_cells(found, tmp_path), found.data)
    assert f"#     tammes benchmark benchmarks/plans/{file.name}" in file.read_text()


def test_every_table_of_the_paper_on_images_has_a_plan_with_all_of_its_rows() -> None:
    # The table of minutes is made of the plans of methods; one-hot centroids are their Discriminative.
    minutes = {name for name in published() if name.startswith("minutes-")}
    rows: dict[str, set[str]] = {}
    for file in PLANS:
        found = read_plan(file)
        for row in (row for method in found.methods for row in method.paper.values()):
            table, _, name = row.rpartition("/")
            rows.setdefault(table or str(found.paper), {"one-hot"} if "centroids" in table else set()).add(name)
    for name in minutes:
        assert rows.pop(name, set()) <= set(published()[name].rows)
        assert set(published()[name].rows) <= rows[name.removeprefix("minutes-")]
    assert rows == {
        name: set(table.rows) for name, table in published().items() if name not in {"complexity", *minutes}
    }


def test_a_method_has_the_layers_that_there_are_and_seeds_of_its_own(tmp_path: Path) -> None:
    more = '[[method]]\nname = "pairs"\nloss = "lifted"\nseeds = [1]\n'
    found = plan(tmp_path, 'seeds = [0, 1]\nlayers = ["last", "penultimate"]\n' + SHORTEST + more)
    one, pairs = found.methods
    assert (one.layers, one.seeds) == (("last", "penultimate"), (0, 1))
    assert (pairs.layers, pairs.seeds) == (("penultimate",), (1,))
    assert (found.options(one)["embedding"], found.options(pairs)["embedding"]) == ("last", "penultimate")
    assert [(cell.seed, cell.method.name) for cell in table_cells(found, tmp_path)] == [
        (0, "one"),
        (1, "one"),
        (1, "pairs"),
    ]


def test_a_row_of_the_paper_may_be_of_another_table(tmp_path: Path) -> None:
    found = plan(tmp_path, 'paper = "cub"\n' + SHORTEST + 'paper = "centroids-cub/K-means"\n')
    assert benchmark_tables.table(found, "default", [])[0].paper == published()["centroids-cub"].rows["K-means"]


def test_the_papers_numbers() -> None:
    tables = published()
    assert {table.number for table in tables.values()} == set(range(1, 9))
    assert tables["cub"].rows["Discriminative"] == {
        "NMI": 59.92,
        "R@1": 51.43,
        "R@2": 64.23,
        "R@4": 74.31,
        "R@8": 82.83,
    }
    assert tables["cars196"].rows["Triplet+proxy"]["R@8"] == 88.68
    assert "NMI" not in tables["cub"].rows["Histogram"]
    assert tables["layers-cub"].rows["Last layer"]["R@1"] == 49.49
    assert tables["centroids-cars196"].rows["K-means"]["std of distances"] == 0.066
    assert tables["more-cars196"].rows["Lin et al. 2018"]["R@1"] == 82.0
    assert [row["minutes"] for row in tables["minutes-cub"].rows.values()] == [660, 680, 54]
    assert tables["vgg16-cub"].rows["Discriminative"]["R@1"] == 57.74
    assert tables["complexity"].rows["Discriminative"]["complexity"] == "O(NC)"


def test_tables_of_the_paper_that_show_the_same_agree() -> None:
    tables = published()
    for data in ("cub", "cars196"):
        best = {name: value for name, value in tables[data].rows["Discriminative"].items() if name != "NMI"}
        assert tables[f"layers-{data}"].rows["Second to last layer"] == best
        assert {name: tables[f"centroids-{data}"].rows["one-hot"][name] for name in best} == best
        assert round(float(best["R@1"]), 1) == tables[f"more-{data}"].rows["Discriminative"]["R@1"]
    for table in tables.values():
        assert table.note.endswith(".")
        for row in table.rows.values():
            recalls = [float(value) for name, value in row.items() if name.startswith("R@")]
            assert recalls == sorted(recalls)
            assert all(30 < recall < 100 for recall in recalls)


def test_a_table_that_the_paper_does_not_have() -> None:
    with pytest.raises(UserError, match="unknown table of the paper 'cars'. Did you mean 'cars196'"):
        published_table("cars")


def test_options_of_a_loss_stand_beside_those_of_train(tmp_path: Path) -> None:
    text = SHORTEST + 'loss = "triplet"\nform = "margin"\nsearch = { margin = [0.1, 0.2] }\n[search]\nlr = [1]\n'
    (tmp_path / "plan.toml").write_text(text)
    method = read_plan(tmp_path / "plan.toml").methods[0]
    assert method.options == {"loss": "triplet", "loss_options": ("form=margin",)}
    assert method.search == {"margin": (0.1, 0.2)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SHORTEST + "[train]\nlr = nan\n", "plan.toml: method 'one': `lr` must be a finite number, got nan."),
        (SHORTEST + "[train]\nepochs = 0\n", "plan.toml: method 'one': `epochs` must be at least 1, got 0."),
        (SHORTEST + "[search]\nlr = [0.1, -1]\n", "plan.toml: method 'one': `lr` must not be negative, got -1.0."),
    ],
)
def test_a_plan_is_refused_for_what_train_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out"), "--dry-run"])
    assert (ended.value.code, said in capsys.readouterr().err.replace("\n", " ")) == (2, True)
    assert not (tmp_path / "out").exists()
