"""Options that several commands have."""

from typing import Annotated, Any, Literal

from typing_extensions import Doc

from tammes.cli.console import optional
from tammes.models.origin import Precision
from tammes.training.options import Pool

Device = Annotated[Literal["auto", "cpu"], Doc("auto uses a GPU if there is one.")]
Json = Annotated[bool, Doc("Print the result as one JSON object.")]
SkipBad = Annotated[bool, Doc("Leave out images that cannot be read, and say how many.")]
# Of a pretrained network that takes the place of a run.
Weights = Annotated[
    str | None, optional("FILE"), Doc("Of a pretrained network: a file of its weights. (default: the published ones)")
]
WeightsForm = Annotated[
    Literal["torchvision", "keras"] | None,
    optional("{torchvision,keras}"),
    Doc("Of resnet50, 101 and 152: the form of the network that a file of weights is for, if the file does not say."),
]
Size = Annotated[
    int | None,
    optional("INT"),
    Doc("Of a pretrained network: height and width of its input images. (default: as published)"),
]
Pooling = Annotated[
    Pool | None,
    optional("{published,token,mean,max,mean-max,gem}"),
    Doc("Of a pretrained network: how its last feature map is pooled. (default: published)"),
]
# Of any model.
InPrecision = Annotated[
    Precision | None,
    optional("{no,bf16}"),
    Doc(
        "bf16 runs the network in bfloat16: faster on a GPU, or on a processor with bfloat16 instructions (avx512_bf16,"
        " amx_bf16). The features stay float32 and differ a little. A gallery keeps it for searches and later images."
        " (default: no)"
    ),
]
# Of a gallery.
MadeBy = Annotated[
    str | None,
    optional("MODEL|FILE"),
    Doc(
        "The model that made the gallery, if it was moved or the gallery does not name it: a run, a model on the hub"
        " (hf://owner/name), a pretrained network, or the file of its weights."
    ),
]


def network_options(config: Any) -> dict[str, Any]:
    """How a pretrained network is built, as `tammes.pretrained` takes it."""
    return {"weights": config.weights, "form": config.weights_form, "size": config.size, "pool": config.pool}
