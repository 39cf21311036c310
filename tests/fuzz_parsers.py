"""Coverage-guided fuzzing of what we read files with, by Atheris (libFuzzer): inputs that reach new code are kept and
changed further.

    pip install atheris
    python -m tests.fuzz_parsers KIND FOLDER -max_total_time=60

KIND is one of the examples of tests/test_untrusted.py, such as n.caffemodel, which is where it begins; FOLDER keeps
what it finds, and a later call continues from there. An error that is not a UserError ends it with an exit code
other than 0. All further options are libFuzzer's.
"""

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory


def main(kind: str, folder: Path, *options: str) -> None:
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["tammes"]):
        untrusted = import_module("tests.test_untrusted")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / kind).write_bytes(untrusted.examples()[kind])
    read = untrusted.reader_of(kind)
    with TemporaryDirectory() as place:
        file = Path(place) / kind

        def one(content: bytes) -> None:
            file.write_bytes(content)
            untrusted.refusal(lambda: read(file))

        atheris.Setup([sys.argv[0], str(folder), f"-artifact_prefix={folder}/", "-print_final_stats=1", *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
