"""The N-pair loss: a positive pair of each class against the positives of all other classes."""

from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tammes.errors import check_positive, unknown_name
from tammes.geometry import checked_batch
from tammes.losses.method import Method
from tammes.losses.mining import mean_or_zero, negatives, pairs_in_order, positives

Form = Literal["softmax", "one-vs-one"]


class NPairLoss(nn.Module):
    """The N-pair loss of Sohn (NIPS 2016), as a mean over the pairs.

    The first and second image of each class in the batch are a pair of anchor a and positive p, so are the third and
    fourth, …; the negatives of pair i are the positives of the pairs j of other classes. With s_ij = a_i · p_j:

        softmax       log(1 + sum over j of exp(s_ij - s_ii))
        one-vs-one    sum over j of log(1 + exp(s_ij - s_ii))

    plus penalty / 4 * (mean of |a|² + mean of |p|²), because the embeddings are not normalised (the convention of
    TensorFlow's implementation, whose 0.002 is the default). With two images of each class this is the paper's form.
    An image without a partner, the last of an odd number, is not used.

    The paper's "hard negative class mining", which puts classes that are confused with each other into one batch, is
    not implemented: the classes of a batch are drawn at random.

    Args:
        penalty: the weight of the squared norms.
        form: all negatives in one softmax ("multi-class N-pair"), or each separately.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.0, 2.0]])
    >>> round(NPairLoss(penalty=0.0)(embeddings, torch.tensor([0, 0, 1, 1])).item(), 6)
    0.350385
    """

    minimum = 0.0  # approached; reached only if a batch has no pairs

    def __init__(self, *, penalty: float = 0.002, form: Form = "softmax") -> None:
        super().__init__()
        check_positive("penalty", penalty, or_zero=True)
        if form not in get_args(Form):
            raise unknown_name("form", form, get_args(Form))
        self.penalty, self.form = penalty, form

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        embeddings, labels = checked_batch(embeddings, labels)
        first, second = pairs_in_order(labels)  # (pairs,)
        with torch.autocast(embeddings.device.type, enabled=False):
            # float64 is not affected by autocast, also in the backward; products of long vectors need the precision.
            anchors, partners = embeddings[first].double(), embeddings[second].double()  # (pairs, dim)
            alike = anchors @ partners.T  # (pairs, pairs)
            worse = alike - alike.diagonal()[:, None]  # (pairs, pairs): 0 on the diagonal, the 1 in the logarithm
            if self.form == "softmax":
                same_class = positives(labels[first])  # (pairs, pairs)
                terms = worse.masked_fill(same_class, float("-inf")).logsumexp(dim=1)  # (pairs,)
            else:
                terms = torch.where(negatives(labels[first]), -F.logsigmoid(-worse), 0.0).sum(1)  # (pairs,)
            lengths = anchors.square().sum(1) + partners.square().sum(1)  # (pairs,)
            return mean_or_zero(terms + self.penalty / 4 * lengths).to(embeddings.dtype)

    def extra_repr(self) -> str:
        return f"penalty={self.penalty:.6g}, form={self.form}"


METHOD = Method(
    loss=NPairLoss,
    title="N-pair",
    summary="the positive of each pair against the positives of all other classes, by inner products",
    equation="mean over pairs i of  log(1 + sum over j of exp(a_i · p_j - a_i · p_i)) + penalty / 4 (|a_i|² + |p_i|²)",
    cost="B² D",
    reference="Sohn (2016): Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS",
    images_per_class=2,
    initial_norm=3.0,
    lr=0.1,
)
