"""The plan of a benchmark: a TOML file with data, methods, seeds and the hyper-parameter search.

Unknown keys and values of a wrong type are errors.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, Field

from tammes.benchmark.published import published_row, published_table
from tammes.errors import UserError, shown, unknown_name
from tammes.io.files import read_text
from tammes.io.schema import built
from tammes.losses import Method as Loss
from tammes.training.config import command_of
from tammes.training.objectives import find_method, find_miner
from tammes.training.options import Layer, Preset, TrainOptions

T = TypeVar("T")

_ADVICE = "docs/benchmark.md says what a plan holds."
_MOST = 2**63  # what a whole number of TOML must be below
_RANGE = "A whole number must be from -2**63 to 2**63 - 1, as TOML has it."
_LONGEST_NAME = 200  # bytes of a folder: those of file systems end at 255, with what is put before and behind it

Quarter = Literal[0, 1, 2, 3]
QUARTERS: tuple[Quarter, ...] = (0, 1, 2, 3)
_KINDS = get_type_hints(TrainOptions)
# What must be the same for every method, or the table compares something else.
FOR_ALL = {
    *("backbone", "weights", "train", "cut", "views", "pool", "dim", "epochs", "mirror", "shift", "precision"),
    *("device", "test_classes", "val_classes", "skip_bad", "curve"),
}
# What is said in another place.
ELSEWHERE = {
    "data": "data, at the top of the file",
    "seed": "seeds, at the top of the file",
    "preset": "presets, at the top of the file",
    "embedding": "layers, at the top of the file",
    "out": "`tammes benchmark --out`",
    "json": "`tammes benchmark --json`",
    "resume": "nowhere: a benchmark resumes by itself",
    "overwrite": "nowhere: choose another `tammes benchmark --out`",
    "init_from": "nowhere: every run starts from the weights of the backbone",
    "continue_from": "nowhere: every run starts from the weights of the backbone",
    "compatible": "nowhere: every run starts from the weights of the backbone",
    "loss_options": "the method by their own names, such as margin = 0.2",
    "hidden": "nowhere: it is for vectors, and a benchmark is of images",
    "method": "nowhere: it is for vectors, and a benchmark is of images",
}


def _different(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"has a value twice: {list(values)}")
    return values


def _as_a_folder(name: str) -> str:
    if not name.strip() or not name.isprintable() or len(slug(name).encode()) > _LONGEST_NAME:
        raise ValueError(
            f"must be a line of up to {_LONGEST_NAME} letters that can be printed, as it is that of a folder too; got"
            f" {shown(name)}"
        )
    return name


Several = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_different)]
Seed = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Method:
    """One row of the table, or one for each layer.

    Attributes:
        options: its own options of `tammes train`.
        search: its own hyper-parameter, if it has one, and the values to try.
        paper: layer -> row of the paper's table with the same method; TABLE/ROW for another table.
        layers: the layers of the plan that it has.
        seeds: the seeds of the plan that it is run with.
        rates: learning rates to try instead of those for all methods, and as many.
    """

    name: str
    options: dict[str, Any]
    search: dict[str, tuple[Any, ...]]
    paper: dict[str, str]
    layers: tuple[str, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...] = ()

    @property
    def slug(self) -> str:
        """Its name as a folder name."""
        return slug(self.name)


@dataclass(frozen=True)
class SearchSpace:
    """The hyper-parameter search for each method, by mean R@1 over held-out quarters of the training classes.

    Attributes:
        lr: learning rates of the new layers; that of the backbone is scaled with it.
        quarters: the quarters of the training classes that are held out, one after the other.
        seed: random seed of these trainings.
        widen: whether to try one more rate beyond the lowest or highest if that is the best.
        train: options of these trainings that differ from the plan's.
    """

    lr: Several[float]
    quarters: Several[Quarter] = QUARTERS
    seed: Seed = 0
    widen: bool = False
    train: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A benchmark."""

    file: Path
    title: str
    data: str
    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    layers: tuple[str, ...]
    train: dict[str, Any]
    methods: tuple[Method, ...]
    search: SearchSpace | None
    paper: str | None
    rates_from: "Plan | None" = None  # the plan whose search has chosen for the methods of this one

    def options(self, method: Method) -> dict[str, Any]:
        """The options of `tammes train` for a method, without data, preset, seed and searched options."""
        return self.train | method.options | {"embedding": method.layers[0]}

    def command(self, method: Method, preset: str, seed: int, layer: str | None = None) -> str:
        """The `tammes train` command of a method, without defaults.

        Args:
            layer: the embedding layer, if not the method's first.
        """
        given = self.options(method) | {"preset": preset, "seed": seed} | ({"embedding": layer} if layer else {})
        usual = {"preset": "default", "loss": "discriminative", "embedding": "penultimate", "seed": 0}
        changed = [name for name in _KINDS if name in given and given[name] != usual.get(name)]
        return command_of(self.data, {name: given[name] for name in changed})


@dataclass(frozen=True)
class _Top:
    """The top level of the file; its tables are read separately."""

    data: str
    method: Annotated[list[dict[str, Any]], Field(min_length=1)]
    title: str | None = None
    presets: Several[Preset] = ("default",)
    seeds: Several[Seed] = (0, 1, 2)
    layers: Several[Layer] = ("penultimate",)
    paper: str | None = None
    rates_from: str | None = None


@dataclass(frozen=True)
class _Row:
    """The keys of a [[method]] besides options."""

    name: Annotated[str, AfterValidator(_as_a_folder)]
    search: dict[str, Any] = field(default_factory=dict)
    paper: str | dict[str, str] = field(default_factory=dict)
    seeds: Several[Seed] | None = None


def slug(name: str) -> str:
    """A name as letters, digits and dashes.

    >>> slug("K-means centroids, push 0.5")
    'k-means-centroids-push-0.5'
    """
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-.") or "x"


def describe_options(options: Mapping[str, Any]) -> str:
    """Options as one line.

    >>> describe_options({"lr": 0.1, "centroids": "one-hot"})
    'lr 0.1, centroids one-hot'
    """
    values = {name: f"{value:g}" if isinstance(value, float) else value for name, value in options.items()}
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in values.items())


def read_plan(file: Path, *, searches: bool = False) -> Plan:
    """Read the plan in a file.

    Args:
        searches: whether it must have a search, whose choices another plan uses.
    """
    try:
        given = tomllib.loads(read_text(file))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the plan {file}: {error.strerror}. {_ADVICE}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file} is not TOML: {error}.") from None
    except ValueError:  # Python reads no whole number of more than a few thousand digits
        raise UserError(f"{file} holds a number of thousands of digits. {_RANGE}") from None
    with _at(f"{file}: "):
        if searches and "search" not in given:
            raise UserError("there is no [search], so no rates can be taken over from it.")
        return _plan(file, given)


def _plan(file: Path, given: dict[str, Any]) -> Plan:
    _check_numbers(given)
    with _at("[train] "):
        train = _options(given.pop("train", {}))
    search = _search(given.pop("search"), train) if "search" in given else None
    top: _Top = _table(given, _Top)
    if Path(top.data).suffix.lower() in (".npz", ".parquet"):
        raise UserError(f"data = {top.data!r} holds vectors, and benchmarks are for images.")
    if top.paper is not None:
        published_table(top.paper)
    methods = tuple(_method(table, top, train, search) for table in top.method)
    for number, method in enumerate(methods):
        for other in methods[:number]:
            if other.slug == method.slug:
                raise UserError(f"the methods {other.name!r} and {method.name!r} would share a folder. Rename one.")
    title = top.title or file.stem
    plan = Plan(file, title, top.data, top.presets, top.seeds, top.layers, train, methods, search, top.paper)
    return plan if top.rates_from is None else replace(plan, rates_from=_rates_from(plan, top.rates_from))


def _rates_from(plan: Plan, name: str) -> Plan:
    """The plan in the same folder whose search this plan uses."""
    for there, what in ((plan.search, "[search]"), ("lr" in plan.train, "lr in [train]")):
        if there:
            raise UserError(f"rates_from = {name!r} and {what} both say the rates: leave out one.")
    with _at("rates_from: "):
        found = read_plan(plan.file.with_name(f"{name}.toml"), searches=True)
    for method in plan.methods:
        if "lr" in method.options:
            raise UserError(f"method {method.name!r}: lr is taken over by rates_from: leave it out.")
    missing = sorted({method.name for method in plan.methods} - {method.name for method in found.methods})
    missing += sorted(set(plan.presets) - set(found.presets))
    if missing:
        raise UserError(f"rates_from = {name!r}, and {found.file} does not search for {missing[0]!r}.")
    return found


def _search(given: Any, train: Mapping[str, Any]) -> SearchSpace:
    if "lr" in train:
        raise UserError("lr is given in [train] and searched for in [search]. Leave out one of them.")
    with _at("[search] "):
        found: SearchSpace = _table(given, SearchSpace)
    with _at("[search.train] "):
        return replace(found, train=_options(found.train))


def _method(table: dict[str, Any], top: _Top, train: dict[str, Any], search: SearchSpace | None) -> Method:
    names = {each.name for each in fields(_Row)}
    with _at("[[method]] "):
        row: _Row = _table({key: value for key, value in table.items() if key in names}, _Row)
    with _at(f"method {row.name!r}: "):
        own = {key: value for key, value in table.items() if key not in names}
        said = train | own
        miner, base = (None if said.get(key) is None else str(said[key]) for key in ("miner", "base"))
        loss = find_method(str(said.get("loss", "discriminative")), miner, base)
        of_loss = _of_loss({key: own.pop(key) for key in list(own) if _is_of_loss(key, loss)}, loss)
        options = {"loss": "discriminative"} | _options(own) | ({"loss_options": of_loss} if of_loss else {})
        _check_miner(train | options)
        shared = sorted(FOR_ALL & set(options))
        if shared:
            raise UserError(f"{shared[0].replace('_', '-')} must be the same for all: put it in [train].")
        layers = top.layers
        if loss.on != "class layer" or (train | options).get("class_layer") is False:
            layers = tuple(layer for layer in layers if layer != "last")
            if not layers:
                raise UserError("without a class layer there is no layer 'last'.")
        for seed in row.seeds or ():
            if seed not in top.seeds:
                raise UserError(f"seeds has {seed}, and seeds at the top of the file has not.")
        rates, values = _searched(row, options, loss, search)
        paper = _paper(row.paper, layers, top.paper)
        return Method(row.name, options, values, paper, layers, row.seeds or top.seeds, rates)


def _searched(
    row: _Row, options: Mapping[str, Any], loss: Loss, search: SearchSpace | None
) -> tuple[tuple[float, ...], dict[str, tuple[Any, ...]]]:
    """The method's own learning rates, and its hyper-parameter with the values to try."""
    if search is None:
        if row.search:
            raise UserError("search needs a table [search] with lr = [...], the same for all.")
        return (), {}
    if "lr" in options:
        raise UserError("lr is searched for in [search], the same for all. Leave it out here.")
    asked: dict[str, Any] = built(row.search, dict[str, Several[Any]], "search", "")
    with _at("search: "):
        rates = tuple(_options({"lr": each})["lr"] for each in asked.pop("lr", ()))
        if rates and len(rates) != len(search.lr):
            raise UserError(
                f"{len(rates)} values of lr, and [search] has {len(search.lr)}: each method must have as many tries."
            )
        if len(asked) > 1:
            raise UserError(f"a method has one hyper-parameter, got {', '.join(sorted(asked))}.")
        found = {}
        for key, values in asked.items():
            given = [each.partition("=")[0] for each in options.get("loss_options", ())]
            if _word(key) in FOR_ALL or _word(key) in ("lr", "backbone_lr", *options, *given):
                raise UserError(f"cannot be of {key}: it is given already, or the same for all.")
            if _is_of_loss(key, loss):
                found[_word(key)] = tuple(value for value in values if _of_loss({key: value}, loss))
            else:
                found[_word(key)] = tuple(_options({key: value})[_word(key)] for value in values)
    return rates, found


def _check_miner(options: Mapping[str, Any]) -> None:
    """Raise UserError for options that the miner does not have, or without a miner."""
    miner, given = options.get("miner"), options.get("miner_options", ())
    if miner is not None:
        find_miner(miner).parse(given)
    elif given:
        raise UserError('miner-options are those of a miner: add miner = "pml:NAME".')


def _is_of_loss(key: str, loss: Loss) -> bool:
    """Whether a key is an option of the loss."""
    return _word(key) not in _KINDS and _word(key) in loss.options


def _of_loss(given: Mapping[str, Any], loss: Loss) -> tuple[str, ...]:
    """Options of a loss in the form of `--loss-options`."""
    said = tuple(f"{_word(key)}={value}" for key, value in given.items())
    loss.parse(said)
    return said


def _paper(given: str | dict[str, str], layers: tuple[Layer, ...], table: str | None) -> dict[str, str]:
    """The row of the paper's table for a method: one name for the first layer, or one for each layer."""
    rows: dict[str, str] = {layers[0]: given} if isinstance(given, str) else given
    if rows and table is None:
        raise UserError('paper names a row, but the file does not say of which table: paper = "cub".')
    for layer, row in rows.items():
        if layer not in layers:
            raise UserError(f"paper: {unknown_name('layer', layer, layers)}")
        published_row(str(table), row)
    return rows


def _options(given: Any) -> dict[str, Any]:
    """Options of `tammes train` by name."""
    words: dict[str, Any] = {}
    for key, value in built(given, dict[str, Any], "it", "").items():
        name = _word(key)
        if name in ELSEWHERE:
            raise UserError(f"{key} is not for here: it belongs in {ELSEWHERE[name]}.")
        if name not in _KINDS:
            near = get_close_matches(name, _KINDS, n=1)
            hint = f" Did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise UserError(f"{key!r} is not an option of tammes train.{hint} See `tammes train --help`.")
        if name in words:
            raise UserError(f"{key!r} is given twice, with - and with _.")
        is_text = str in (_KINDS[name], *get_args(_KINDS[name]))  # as in val-classes = 0.2
        words[name] = str(value) if is_text and type(value) in (int, float) else value
    found: dict[str, Any] = built(words, TrainOptions, "", "")
    return found


def _table(given: Any, shape: type[T]) -> T:
    """A table of the file."""
    known = [each.name for each in fields(shape)]  # type: ignore[arg-type]
    for key in given if type(given) is dict else ():
        if key not in known:
            raise unknown_name("key", key, known)
    found: T = built(given, shape, "", _ADVICE)
    return found


def _check_numbers(given: Any, name: str = "") -> None:
    """Raise UserError for integers that are out of range for any option."""
    if isinstance(given, dict | list):
        for key, value in given.items() if isinstance(given, dict) else (("", value) for value in given):
            _check_numbers(value, f"{name} {key}".strip())
    elif isinstance(given, int) and not -_MOST <= given < _MOST:
        raise UserError(f"{name} is too large: {shown(given)}. {_RANGE}")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Add the position in the file to an error."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}{error}") from None


def _word(key: str) -> str:
    return key.replace("-", "_")
