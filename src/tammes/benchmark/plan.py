"""The plan of a benchmark: a TOML file that says which methods are compared, on what, and how they are searched for.

Nothing in it is guessed at: a key that is not known, or a value of the wrong kind, is an error that names it.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pydantic import ValidationError

from tammes.benchmark.published import published_row, published_table
from tammes.errors import UserError, check_seed, shown
from tammes.io.files import read_text
from tammes.io.schema import adapter, problem
from tammes.losses import Method as Loss
from tammes.training.config import command_of
from tammes.training.objectives import METHODS, find_method, find_miner
from tammes.training.options import TrainOptions

_MOST = 2**63  # what a whole number of TOML must be below
_RANGE = "A whole number must be from -2**63 to 2**63 - 1, as TOML has it."
_LONGEST_NAME = 200  # bytes of a folder: those of file systems end at 255, with what is put before and behind it

LAYERS = ("penultimate", "last")
QUARTERS = (0, 1, 2, 3)
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


@dataclass(frozen=True)
class Method:
    """One row of the table, or one for each layer.

    Attributes:
        options: those of `tammes train` that are its own.
        search: its own hyper-parameter, if it has one, and the values to try.
        paper: layer -> the row of the paper's table that is the same method; TABLE/ROW where it is in another table.
        layers: those of the plan that it has.
        seeds: those of the plan that it is run with.
        rates: learning rates to try in place of those that are tried for all, and as many.
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
        """Its name as that of a folder."""
        return slug(self.name)

    @property
    def missing(self) -> str | None:
        """What of it is not there yet."""
        loss = self.options.get("loss", "discriminative")
        return None if loss in METHODS or loss.startswith("pml:") else f"loss {loss}"


@dataclass(frozen=True)
class SearchSpace:
    """What is chosen for each method, by the mean R@1 over quarters of the training classes that do not train.

    Attributes:
        lr: learning rates of the new layers; that of the backbone goes with it.
        quarters: which quarters of the training classes validate, one after the other.
        seed: of all these trainings.
        widen: whether one more rate is tried where the best is the lowest or the highest, a step beyond it.
        train: options of these trainings, in place of those of the plan's.
    """

    lr: tuple[float, ...]
    quarters: tuple[int, ...]
    seed: int
    widen: bool = False
    train: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A benchmark as its file describes it."""

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
        """The options of `tammes train` for a method, beside data, preset, seed and what is searched for."""
        return self.train | method.options | {"embedding": method.layers[0]}

    def command(self, method: Method, preset: str, seed: int, layer: str | None = None) -> str:
        """The `tammes train` of a method, in the order of its help, without what is the default.

        Args:
            layer: that images are compared by, if not the method's first.
        """
        given = self.options(method) | {"preset": preset, "seed": seed} | ({"embedding": layer} if layer else {})
        usual = {"preset": "default", "loss": "discriminative", "embedding": "penultimate", "seed": 0}
        known = [name for name in TrainOptions.__annotations__ if name in given]
        own = [name for name in given if name not in known]  # of a loss that is not there yet
        return command_of(self.data, {name: given[name] for name in [*known, *own] if given[name] != usual.get(name)})


def slug(name: str) -> str:
    """Letters, figures and dashes.

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
    """The plan in a file.

    Args:
        searches: whether it must search for itself, so that others can take over what it has chosen.
    """
    try:
        given = tomllib.loads(read_text(file))
    except UserError:
        raise
    except OSError as error:
        raise UserError(
            f"cannot read the plan {file}: {error.strerror}. docs/benchmark.md says what it holds."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file} is not TOML: {error}.") from None
    except ValueError:  # Python reads no whole number of more than a few thousand digits
        raise UserError(f"{file} holds a number of thousands of digits. {_RANGE}") from None
    _check_numbers(file, given)
    if searches and "search" not in given:
        raise UserError(f"{file} has no [search], so no rates can be taken over from it.")
    return _Reader(file, get_type_hints(TrainOptions)).plan(given)


def _check_numbers(file: Path, given: Any, name: str = "") -> None:
    """Refuse whole numbers that no option can be, wherever they stand, before anything is done with them."""
    if isinstance(given, dict):
        for key, value in given.items():
            _check_numbers(file, value, f"{name} {key}".strip())
    elif isinstance(given, list):
        for value in given:
            _check_numbers(file, value, name)
    elif isinstance(given, int) and not -_MOST <= given < _MOST:
        raise UserError(f"{file}: {name} is too large: {shown(given)}. {_RANGE}")


@dataclass(frozen=True)
class _Reader:
    """What reading a plan needs everywhere: the file, for errors, and the options of a training."""

    file: Path
    kinds: Mapping[str, Any]

    def plan(self, given: dict[str, Any]) -> Plan:
        known = ("title", "data", "presets", "seeds", "layers", "paper", "train", "search", "rates_from", "method")
        self.known(given, known, "")
        data = self.of(given, "data", str, default=MISSING)
        if Path(data).suffix.lower() in (".npz", ".parquet"):
            raise UserError(f"{self.file}: data = {data!r} holds vectors, and a benchmark is of images.")
        layers = self.listed(given, "layers", Literal[LAYERS], ("penultimate",))
        train = self.options(self.of(given, "train", dict, default={}), "[train]")
        search = self.search(given, train)
        paper = self.of(given, "paper", str, default=None)
        if paper is not None:
            self.named(lambda: published_table(paper))
        seeds = self.listed(given, "seeds", int, (0, 1, 2))
        for seed in seeds:
            self.seed("each of seeds", seed)
        tables = self.of(given, "method", list, default=MISSING)
        if not tables or not all(isinstance(table, dict) for table in tables):
            raise UserError(f"{self.file}: a plan needs one [[method]] or more, each with a name and its own options.")
        methods = tuple(self.method(table, search, train, layers, seeds, paper) for table in tables)
        for number, method in enumerate(methods):
            for other in methods[:number]:
                if other.slug == method.slug:
                    raise UserError(
                        f"{self.file}: the methods {other.name!r} and {method.name!r} would share a folder. Rename one."
                    )
        presets = self.listed(given, "presets", self.kinds["preset"], ("default",))
        return Plan(
            file=self.file,
            title=self.of(given, "title", str, default=self.file.stem),
            data=data,
            presets=presets,
            seeds=seeds,
            layers=layers,
            train=train,
            methods=methods,
            search=search,
            paper=paper,
            rates_from=self.rates_from(given, train, presets, methods),
        )

    def rates_from(
        self, given: dict[str, Any], train: dict[str, Any], presets: tuple[str, ...], methods: tuple[Method, ...]
    ) -> Plan | None:
        """The plan beside this one whose search chooses for it."""
        name = self.of(given, "rates_from", str, default=None)
        if name is None:
            return None
        for there, what in (("search" in given, "[search]"), ("lr" in train, "lr in [train]")):
            if there:
                raise UserError(f"{self.file}: rates_from = {name!r} and {what} both say the rates: leave out one.")
        beside = self.file.with_name(f"{name}.toml")
        found: Plan = self.named(lambda: read_plan(beside, searches=True), "rates_from: ")
        given_twice = [method.name for method in methods if "lr" in method.options]
        if given_twice:
            raise UserError(f"{self.file}: method {given_twice[0]!r}: lr is taken over by rates_from: leave it out.")
        missing = sorted({method.name for method in methods} - {method.name for method in found.methods})
        missing += sorted(set(presets) - set(found.presets))
        if missing:
            raise UserError(f"{self.file}: rates_from = {name!r}, and {found.file} does not search for {missing[0]!r}.")
        return found

    def search(self, given: dict[str, Any], train: dict[str, Any]) -> SearchSpace | None:
        if "search" not in given:
            return None
        table = self.of(given, "search", dict, default=MISSING)
        self.known(table, ("lr", "quarters", "seed", "widen", "train"), "[search] ")
        if "lr" in train:
            raise UserError(f"{self.file}: lr is given in [train] and searched for in [search]. Leave out one of them.")
        seed = self.of(table, "seed", int, default=0, where="[search] ")
        self.seed("[search] seed", seed)
        return SearchSpace(
            lr=self.listed(table, "lr", float, MISSING, "[search] "),
            quarters=self.listed(table, "quarters", Literal[QUARTERS], QUARTERS, "[search] "),
            seed=seed,
            widen=self.of(table, "widen", bool, default=False, where="[search] "),
            train=self.options(self.of(table, "train", dict, default={}, where="[search] "), "[search.train]"),
        )

    def method(
        self,
        table: dict[str, Any],
        search: SearchSpace | None,
        train: dict[str, Any],
        layers: tuple[str, ...],
        seeds: tuple[int, ...],
        paper: str | None,
    ) -> Method:
        name = self.of(table, "name", str, default=MISSING, where="[[method]] ")
        if not name.strip() or not name.isprintable() or len(slug(name).encode()) > _LONGEST_NAME:
            raise UserError(
                f"{self.file}: the name of a [[method]] must be a line of up to {_LONGEST_NAME} letters that can be"
                f" printed, as it is that of a folder too; got {shown(name)}."
            )
        where = f"method {name!r}: "
        own = {key: value for key, value in table.items() if key not in ("name", "search", "paper", "seeds")}
        # The options of a loss that is not there yet cannot be known either.
        loss = own.get("loss", train.get("loss", "discriminative"))
        found = self.loss(loss, own.get("miner", train.get("miner")), own.get("base", train.get("base")), where)
        strict = not isinstance(loss, str) or found is not None
        of_loss = self.of_loss({key: own.pop(key) for key in list(own) if self.is_of_loss(key, found)}, found, where)
        options = (
            self.options(own, where.rstrip(": "), strict=strict) if strict else {_word(k): v for k, v in own.items()}
        )
        if of_loss:
            options["loss_options"] = of_loss
        if found is not None:
            self.check_miner(train | options, where)
        shared = sorted(FOR_ALL & set(options))
        if shared:
            raise UserError(
                f"{self.file}: {where}{shared[0].replace('_', '-')} must be the same for all: put it in [train]."
            )
        options = {"loss": loss} | options
        no_class_layer = found is not None and found.on != "class layer"
        if no_class_layer or options.get("class_layer", train.get("class_layer", True)) is False:
            layers = tuple(layer for layer in layers if layer != "last")
            if not layers:
                raise UserError(f"{self.file}: {where}without a class layer there is no layer 'last'.")
        own_seeds = self.listed(table, "seeds", int, seeds, where)
        for seed in own_seeds:
            if seed not in seeds:
                raise UserError(f"{self.file}: {where}seeds has {seed}, and seeds at the top of the file has not.")
        asked = dict(self.of(table, "search", dict, default={}, where=where))
        if asked and search is None:
            raise UserError(f"{self.file}: {where}search needs a table [search] with lr = [...], the same for all.")
        rates = self.listed(asked, "lr", float, (), f"{where}search ")
        if rates and search is not None and len(rates) != len(search.lr):
            raise UserError(
                f"{self.file}: {where}search has {len(rates)} values of lr, and [search] {len(search.lr)}: each"
                " method must have as many tries."
            )
        asked.pop("lr", None)
        if len(asked) > 1:
            raise UserError(f"{self.file}: {where}search is of one hyper-parameter, got {', '.join(sorted(asked))}.")
        values: dict[str, tuple[Any, ...]] = {}
        for key in asked:
            option = _word(key)
            if self.is_of_loss(key, found):
                for value in self.listed(asked, key, Any, MISSING, f"{where}search "):
                    self.of_loss({key: value}, found, where)
            elif strict:
                self.options({key: None}, where.rstrip(": ") + ", search", values=False)
            given_of_loss = [each.partition("=")[0] for each in of_loss]
            if option in FOR_ALL or option in ("lr", "backbone_lr", *options, *given_of_loss):
                raise UserError(
                    f"{self.file}: {where}search cannot be of {key}: it is given already, or the same for all."
                )
            kind = self.kinds[option] if strict and option in self.kinds else Any
            values[option] = self.listed(asked, key, kind, MISSING, f"{where}search ")
        if search is not None and "lr" in options:
            raise UserError(f"{self.file}: {where}lr is searched for in [search], the same for all. Leave it out here.")
        return Method(name, options, values, self.paper(table, where, layers, paper), layers, own_seeds, rates)

    def loss(self, name: Any, miner: Any, base: Any, where: str) -> Loss | None:
        """The loss of a method; None if it is not there yet."""
        if not isinstance(name, str) or not (name in METHODS or name.startswith("pml:")):
            return None
        miner, base = (None if each is None else str(each) for each in (miner, base))
        found: Loss = self.named(lambda: find_method(name, miner, base), where)
        return found

    def check_miner(self, options: Mapping[str, Any], where: str) -> None:
        """Refuse options that a miner has not, or that have no miner."""
        miner, given = options.get("miner"), options.get("miner_options", ())
        if miner is not None:
            self.named(lambda: find_miner(miner).parse(given), where)
        elif given:
            raise UserError(f'{self.file}: {where}miner-options are those of a miner: add miner = "pml:NAME".')

    def is_of_loss(self, key: str, loss: Loss | None) -> bool:
        """Whether a key is an option of the loss and not of `tammes train`."""
        return loss is not None and _word(key) not in self.kinds and _word(key) in loss.options

    def of_loss(self, given: dict[str, Any], loss: Loss | None, where: str) -> tuple[str, ...]:
        """Options of a loss as `--loss-options` takes them."""
        said = tuple(f"{_word(key)}={value}" for key, value in given.items())
        if loss is not None and said:
            self.named(lambda: loss.parse(said), where)
        return said

    def paper(self, table: dict[str, Any], where: str, layers: tuple[str, ...], of: str | None) -> dict[str, str]:
        """Which row of the paper's table a method is: one name, for the first layer, or one for each layer."""
        if "paper" not in table:
            return {}
        if of is None:
            raise UserError(
                f'{self.file}: {where}paper names a row, but the file does not say of which table: paper = "cub".'
            )
        given = {layers[0]: table["paper"]} if isinstance(table["paper"], str) else table["paper"]
        if not isinstance(given, dict) or not all(isinstance(row, str) for row in given.values()):
            raise UserError(
                f'{self.file}: {where}paper must be the name of a row, or {{ penultimate = "…", last = "…" }}.'
            )
        self.known(given, layers, where + "paper: ")
        for row in given.values():
            self.named(lambda row=row: published_row(of, row), where)
        return given

    def options(self, given: dict[str, Any], where: str, *, strict: bool = True, values: bool = True) -> dict[str, Any]:
        """Options of `tammes train`, by their names there."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = _word(key)
            if name in ELSEWHERE:
                raise UserError(f"{self.file}: {where} does not take {key}: it belongs in {ELSEWHERE[name]}.")
            if strict and name not in self.kinds:
                near = get_close_matches(name, self.kinds, n=1)
                hint = f" Did you mean {near[0].replace('_', '-')!r}?" if near else ""
                raise UserError(
                    f"{self.file}: {where}: {key!r} is not an option of tammes train.{hint} See `tammes train --help`."
                )
            if name in found:
                raise UserError(f"{self.file}: {where}: {key!r} is given twice, with - and with _.")
            found[name] = self.value(key, value, self.kinds[name], f"{where}: ") if values else None
        return found

    def known(self, given: dict[str, Any], names: tuple[str, ...], where: str) -> None:
        for key in given:
            if key not in names:
                near = get_close_matches(key, names, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise UserError(f"{self.file}: {where}unknown key {key!r}.{hint} Known: {', '.join(names)}.")

    def of(self, given: dict[str, Any], key: str, kind: Any, *, default: Any, where: str = "") -> Any:
        if key not in given:
            if default is MISSING:
                raise UserError(f"{self.file}: {where}{key} is missing.")
            return default
        return self.value(key, given[key], kind, where)

    def listed(self, given: dict[str, Any], key: str, kind: Any, default: Any, where: str = "") -> tuple[Any, ...]:
        """A list of different values of one kind."""
        if key not in given and default is not MISSING:
            return tuple(default)
        values = given.get(key)
        if not isinstance(values, list) or not values:
            raise UserError(f"{self.file}: {where}{key} must be a list of one value or more, got {values!r}.")
        found = tuple(self.value(key, value, kind, where) for value in values)
        if len(set(found)) < len(found):
            raise UserError(f"{self.file}: {where}{key} has a value twice: {values!r}.")
        return found

    def value(self, key: str, value: Any, kind: Any, where: str) -> Any:
        if str in (kind, *get_args(kind)) and type(value) in (int, float):  # as in val-classes = 0.2
            value = str(value)
        try:  # as JSON, in which a list may be a tuple; a date, which TOML has too, is none of our kinds
            return adapter(kind).validate_json(json.dumps(value, default=lambda date: {"date": str(date)}), strict=True)
        except ValidationError as error:
            raise UserError(f"{self.file}: {where}{problem(error, value, key)}.") from None

    def seed(self, what: str, value: int) -> None:
        self.named(lambda: check_seed(what, value, bits=64))

    def named(self, find: Any, where: str = "") -> Any:
        """The same error, with the name of the file."""
        try:
            return find()
        except UserError as error:
            raise UserError(f"{self.file}: {where}{error}") from None


def _word(key: str) -> str:
    return key.replace("-", "_")
