"""`tammes completion`: tab completion for shells."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


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
    from tammes.cli.arguments import for_tyro

    kinds = {name: for_tyro(kind) for name, (kind, _) in COMMANDS.items()}
    try:
        tyro.extras.subcommand_cli_from_dict(kinds, prog="tammes", args=["--tyro-write-completion", config.shell, "-"])
    except SystemExit as done:  # which is how it ends
        if done.code:
            raise
