"""`tammes completion`: tab completion for shells."""

from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import tyro
from typing_extensions import Doc, TypedDict


@dataclass(frozen=True)
class Completion:
    """Print a script for tab completion in bash, zsh or fish.

    For example:
        tammes completion bash > ~/.local/share/bash-completion/completions/tammes
        tammes completion zsh > ~/.zfunc/_tammes
        tammes completion fish > ~/.config/fish/completions/tammes.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Which shell."""


def completion(config: Completion) -> None:
    """Print the script."""
    from tammes.cli import COMMANDS

    kinds = {name: _described(kind) for name, (kind, _) in COMMANDS.items()}
    try:
        tyro.extras.subcommand_cli_from_dict(kinds, prog="tammes", args=["--tyro-write-completion", config.shell, "-"])
    except SystemExit as done:  # which is how it ends
        if done.code:
            raise


def _described(command: type) -> Any:
    """The class as tyro should read it. Of a TypedDict it does not find the texts below its fields by itself."""
    from tammes.cli.arguments import for_tyro, options_of

    if is_dataclass(command):
        return for_tyro(command)
    hints = get_type_hints(command, include_extras=True)
    fields = {option.name: Annotated[hints[option.name], Doc(option.text)] for option in options_of(command)}
    return TypedDict(command.__name__, fields, total=False)  # type: ignore[operator]
