"""The naive triplet loss: L_t, which the discriminative loss bounds from above."""

from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.losses.method import Method
from tammes.losses.triplet import TripletLoss


class NaiveTripletLoss(nn.Module):
    """L_t of Do et al. (2019), equations 1 and 2, as a mean over all triplets of a batch: no margin, no mining.

    For an anchor a, a positive p of its class and a negative n of another, of normalised outputs x:

        |x_a - x_p| - |x_a - x_n|

    It is computed on the outputs of the class layer, like the discriminative loss, which bounds it from above: the same
    network can be trained with either. Over a whole training set the mean is `tammes.bound.triplet_loss`; over a batch
    it is "Trip.-naïve" of the paper's table of complexities.
    `TripletLoss` has other forms, with a margin, and is computed on the embedding.

    >>> import torch
    >>> loss = NaiveTripletLoss()
    >>> round(loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])).item(), 6)
    0.650772
    """

    def __init__(self) -> None:
        super().__init__()
        self.all_triplets = TripletLoss(form="plain")

    def forward(self, outputs: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        value: Tensor = self.all_triplets(outputs, labels)
        return value


METHOD = Method(
    loss=NaiveTripletLoss,
    title="naive triplet",
    summary="L_t, the loss that discriminative bounds: each image closer to its own class, over all triplets",
    equation="mean over triplets of  |x_a - x_p| - |x_a - x_n|",
    cost="B² D",
    reference="equation 1 of Do et al. (2019), as a mean over a batch",
    on="class layer",
    images_per_class=4,
)
