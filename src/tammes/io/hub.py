"""The Hugging Face hub: fetch a model, and push a folder that `tammes export --format hub` wrote."""

from pathlib import Path

from tammes.errors import UserError
from tammes.io.files import PARTIAL, check_no_links

ADDRESS = "hf://"
WRITING = ".writing-"  # prefix of a temporary folder inside one for the hub


def fetched(address: str) -> Path:
    """The folder of a model, `hf://owner/name` or `hf://owner/name@revision`, from the cache or from the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    name, _, revision = address.removeprefix(ADDRESS).partition("@")
    _check_name(name, f"{ADDRESS}owner/name")
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=["config.json", "model.safetensors"])
    except RepositoryNotFoundError:
        raise UserError(f"no model {name} on the hub, or it is private: log in with `hf auth login`.") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, _no_answer(), OSError) as error:
        why = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
        if isinstance(why, HfHubHTTPError | OSError):
            raise UserError(f"cannot fetch {name} from the hub: {_first_line(why)}") from error
        raise UserError(
            f"cannot reach the hub for {name}, and it is not in the cache. Try again when you are online."
        ) from error
    return Path(folder)


def push_to_hub(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Upload a folder as the model `owner/name`, created if necessary. Returns its URL.

    The account is that of `hf auth login` or of the variable HF_TOKEN.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    folder = Path(folder)
    _check_name(name, "owner/name")
    if not (folder / "config.json").exists() or not (folder / "model.safetensors").exists():
        raise UserError(f"{folder} is not ready for the hub. Write it: tammes export RUN --format hub --out {folder}")
    check_no_links(folder)  # what they lead to would be uploaded
    try:
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Upload by tammes",
            ignore_patterns=[f"{WRITING}*", f"*{PARTIAL}"],
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise UserError(
                f"cannot push to {name}: the hub says {status}, you may not write there. Log in with `hf auth login`."
            ) from error
        raise UserError(f"cannot push to {name}: the hub says {status}, {_first_line(error)}") from error
    except (_no_answer(), OSError) as error:
        raise UserError(f"cannot push to {name}: the hub cannot be reached ({_first_line(error)}).") from error
    return f"{ADDRESS}{name}"


def _no_answer() -> type[Exception]:
    """The connection error of the hub's HTTP client, whose name depends on the version."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__mro__[1]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _check_name(name: str, form: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
        if "/" in name:
            return
    except HFValidationError:
        pass
    raise UserError(f"a model on the hub is named {form}, in letters, digits, -, _ and ., got {name!r}.")
