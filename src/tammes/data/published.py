"""Published data sets: their files, URLs and checksums."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One file of a data set as its authors published it.

    Attributes:
        urls: where it can be downloaded, the best first; empty if it must be downloaded by hand.
        checksum: None if unknown.
        unpack: whether it is an archive to unpack.
        also: another path in the folder where copies of the data set have it.
    """

    name: str
    urls: tuple[str, ...] = ()
    checksum: str | None = None
    unpack: bool = True
    also: str | None = None


@dataclass(frozen=True)
class Known:
    """A data set: its number of images, and alternative groups of files that contain it.

    Attributes:
        by_hand: instructions, if it cannot be downloaded automatically.
    """

    images: int
    ways: tuple[tuple[Published, ...], ...]
    by_hand: str = ""


_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"

DATASETS = {
    "cub": Known(
        images=11788,
        ways=(
            (
                Published(
                    "CUB_200_2011.tgz",
                    ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",),
                    "md5:97eceeb196236b17998738112f37df78",  # many public readers of the set agree on it
                ),
            ),
        ),
    ),
    "cars196": Known(
        images=16185,
        ways=(
            (  # checksums: many public readers of the set agree on them
                Published("car_ims.tgz", checksum="md5:d5c8f0aa497503f355e17dc7886c3f14"),
                Published("cars_annos.mat", checksum="md5:b407c6086d669747186bd1d764ff9dbc", unpack=False),
            ),
            (  # checksums: torchvision, while the addresses were alive
                Published("cars_train.tgz", checksum="md5:065e5b463ae28d29e77c1b4b166cfe61"),
                Published("cars_test.tgz", checksum="md5:4ce7ebf6a94d07f1952d94dd34c4d501"),
                Published("car_devkit.tgz", checksum="md5:c3b158d763b6e2245038c8ad08e45376"),
                Published(
                    "cars_test_annos_withlabels.mat",
                    checksum="md5:b0a2b23655a3edd16d84508592a98d10",
                    unpack=False,
                    also="devkit/cars_test_annos_withlabels.mat",
                ),
            ),
        ),
        by_hand=(
            "Stanford no longer serves it. Put car_ims.tgz and cars_annos.mat there, or else cars_train.tgz,"
            " cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat, or what either unpacks to. Copies are"
            " listed in https://github.com/pytorch/vision/issues/7545; one is"
            " https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset."
        ),
    ),
    "sop": Known(
        images=120053,
        ways=(
            (
                Published(
                    "Stanford_Online_Products.zip",
                    (  # the one that the authors' page now leads to, and their first
                        "https://drive.usercontent.google.com/download?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8&confirm=t",
                        "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                    ),
                    "md5:7f73d41a2f44250d4779881525aea32e",  # many public readers of the set agree on it
                ),
            ),
        ),
        by_hand="It can also be downloaded in a browser: https://cvgl.stanford.edu/projects/lifted_struct/.",
    ),
    "inshop": Known(
        images=52712,
        ways=(
            (
                Published("img.zip", also="Img/img.zip"),
                Published("list_eval_partition.txt", unpack=False, also="Eval/list_eval_partition.txt"),
            ),
        ),
        by_hand=(
            "Its authors share it for research, to be downloaded in a browser:"
            " https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html. Put its Img/img.zip"
            " and Eval/list_eval_partition.txt there."
        ),
    ),
    "omniglot": Known(
        images=32460,
        ways=(
            (  # checksums: torchvision; its zip files are read as they are
                Published(
                    "images_background.zip",
                    (f"{_OMNIGLOT}/images_background.zip",),
                    "md5:68d2efa1b9178cc56df9314c21c6e718",
                    unpack=False,
                ),
                Published(
                    "images_evaluation.zip",
                    (f"{_OMNIGLOT}/images_evaluation.zip",),
                    "md5:6b91aef0f799c5bb55b94e3f2daec811",
                    unpack=False,
                ),
            ),
        ),
    ),
}
