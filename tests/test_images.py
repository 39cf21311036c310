"""Every kind of image comes out right, and a broken one says so."""

import os
import struct
import zlib
from io import BytesIO
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from tammes.data.folder import images_below
from tammes.data.images import Room, _tiff_parts, open_image, to_mode
from tammes.errors import UserError
from tests.conftest import HANGS
from tests.serve.hostile import scans

RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)


def stored(image: Image.Image, kind: str, **options: object) -> Image.Image:
    """The picture after a trip through a file in memory."""
    file = BytesIO()
    image.save(file, format=kind, **options)
    file.seek(0)
    return open_image(file)


def colours(image: Image.Image) -> list[tuple[int, ...]]:
    return [tuple(pixel) for pixel in to_mode(image, "RGB").reshape(-1, 3).tolist()]


def row(mode: str, *values: object) -> Image.Image:
    image = Image.new(mode, (len(values), 1))
    for x, value in enumerate(values):
        image.putpixel((x, 0), value)  # type: ignore[arg-type]
    return image


def sixteen_bit_png(values: list[int], transparent: int | None = None) -> BytesIO:
    """A grey PNG of one row, written by hand: Pillow writes no transparency of 16 bits."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", len(values), 1, 16, 0, 0, 0, 0))
    see_through = b"" if transparent is None else chunk(b"tRNS", struct.pack(">H", transparent))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + struct.pack(f">{len(values)}H", *values)))
    return BytesIO(b"\x89PNG\r\n\x1a\n" + header + see_through + pixels + chunk(b"IEND", b""))


def test_rgb_and_grey_are_left_as_they_are() -> None:
    assert colours(stored(row("RGB", RED, (1, 2, 3)), "PNG")) == [RED, (1, 2, 3)]
    assert_array_equal(to_mode(stored(row("L", 0, 7, 255), "PNG"), "L"), [[[0], [7], [255]]])


def test_grey_becomes_three_equal_channels() -> None:
    assert colours(stored(row("L", 0, 7, 255), "PNG")) == [(0,) * 3, (7,) * 3, (255,) * 3]


def test_colour_becomes_its_brightness() -> None:
    assert_array_equal(to_mode(row("RGB", RED, (0, 255, 0), (0, 0, 255), WHITE), "L").ravel(), [76, 150, 29, 255])


def test_one_bit_is_black_and_white() -> None:
    image = stored(row("1", 0, 1), "PNG")
    assert image.mode == "1"
    assert_array_equal(to_mode(image, "L").ravel(), [0, 255])
    assert colours(image) == [BLACK, WHITE]


def test_sixteen_bits_are_scaled_by_their_full_range() -> None:
    image = open_image(sixteen_bit_png([0, 257, 1000, 32896, 65535]))
    assert image.mode == "I;16"
    assert_array_equal(to_mode(image, "L").ravel(), [0, 1, 4, 128, 255])
    assert colours(image)[2:] == [(4,) * 3, (128,) * 3, WHITE]


def test_sixteen_bits_with_a_transparent_grey() -> None:
    image = open_image(sixteen_bit_png([0, 1000, 65535], transparent=1000))
    assert_array_equal(to_mode(image, "L").ravel(), [0, 255, 255])


def test_thirty_two_bits_that_hold_sixteen() -> None:
    assert_array_equal(to_mode(row("I", 0, 32896, 65535), "L").ravel(), [0, 128, 255])


def test_pixels_of_unknown_range_are_refused() -> None:
    with pytest.raises(UserError) as refusal:
        to_mode(row("I", 0, 70000), "L")
    assert str(refusal.value) == "32-bit pixels outside 0..65535: their range is not known. Save it in 8 or 16 bits."
    with pytest.raises(UserError) as refusal:
        to_mode(row("F", 0.0, 3.5), "L")
    assert (
        str(refusal.value) == "floating-point pixels outside 0..1: their range is not known. Save it in 8 or 16 bits."
    )


def test_a_mode_without_conversion_is_refused() -> None:
    with pytest.raises(UserError) as refusal:
        to_mode(Image.new("La", (1, 1)), "RGB")
    assert str(refusal.value) == "cannot turn an image of mode La into RGB."


def test_floating_point_from_0_to_1() -> None:
    assert_array_equal(to_mode(stored(row("F", 0.0, 0.5, 1.0), "TIFF"), "L").ravel(), [0, 128, 255])


def test_cmyk() -> None:
    image = stored(row("CMYK", (0, 0, 0, 0), (0, 255, 255, 0), (0, 0, 0, 255)), "TIFF")
    assert image.mode == "CMYK"
    assert colours(image) == [WHITE, RED, BLACK]


def test_cmyk_jpeg_is_not_inverted() -> None:
    image = stored(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100)
    assert image.mode == "CMYK"
    red, green, blue = colours(image)[0]
    assert (red > 250, green < 5, blue < 5) == (True, True, True)


def test_alpha_is_laid_on_white() -> None:
    image = stored(row("RGBA", (255, 0, 0, 255), (255, 0, 0, 0), (0, 0, 0, 128)), "PNG")
    assert colours(image) == [RED, WHITE, (127, 127, 127)]
    grey = stored(row("LA", (0, 255), (0, 0)), "PNG")
    assert_array_equal(to_mode(grey, "L").ravel(), [0, 255])


def test_a_transparent_colour_is_laid_on_white() -> None:
    assert colours(stored(row("RGB", RED, (1, 2, 3)), "PNG", transparency=RED)) == [WHITE, (1, 2, 3)]
    assert_array_equal(to_mode(stored(row("L", 9, 10), "PNG", transparency=9), "L").ravel(), [255, 10])


def test_a_palette_is_looked_up() -> None:
    image = row("P", 0, 1)
    image.putpalette([*RED, 1, 2, 3])
    assert colours(stored(image, "PNG")) == [RED, (1, 2, 3)]


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"], ids=["one entry", "an alpha for each"])
def test_a_palette_with_transparency_is_laid_on_white(transparency: int | bytes) -> None:
    image = row("P", 0, 1)
    image.putpalette([*RED, 1, 2, 3])
    read = stored(image, "PNG", transparency=transparency)
    assert read.mode == "P"
    assert colours(read) == [WHITE, (1, 2, 3)]


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLACK)]
    for kind in ("GIF", "PNG", "TIFF"):
        image = stored(frames[0], kind, save_all=True, append_images=frames[1:])
        assert set(colours(image)) == {RED}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int) -> None:
    upright = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    # How a camera held that way stores the picture: the inverse of what the tag says to do.
    lying = {
        1: upright,
        2: upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: upright.rotate(180),
        4: upright.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: upright.transpose(Image.Transpose.TRANSPOSE),
        6: upright.rotate(90, expand=True),
        7: upright.transpose(Image.Transpose.TRANSVERSE),
        8: upright.rotate(-90, expand=True),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = stored(lying, "PNG", exif=exif)
    assert_array_equal(to_mode(image, "L")[..., 0], np.asarray(upright))


def test_content_decides_not_the_name(tmp_path: Path) -> None:
    file = tmp_path / "bird.jpg"
    row("RGB", RED).save(file, format="WEBP", lossless=True)
    assert colours(open_image(file)) == [RED]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cut.png"
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:1500])
    with pytest.raises(UserError) as refusal:
        open_image(file)
    assert str(refusal.value).startswith(f"cannot read {file}: it is broken (image file is truncated")


@pytest.mark.filterwarnings("ignore:.*(EXIF|Truncated|Metadata|Tag).*:UserWarning")  # Pillow, of a TIFF cut short
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF"])
def test_a_file_cut_anywhere_is_read_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "cut"
    noise = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, format=kind)
    whole = file.read_bytes()
    refused = 0
    for length in range(1, len(whole), max(1, len(whole) // 40)):
        file.write_bytes(whole[:length])
        try:
            open_image(file)
        except UserError as error:
            refused += str(error).startswith(f"cannot read {file}: ")
    assert refused > 20


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "the file is empty"), (b"<html>404</html>", "it is not an image of a known kind")],
    ids=["empty", "web page"],
)
def test_what_is_no_image_says_so(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(content)
    with pytest.raises(UserError) as refusal:
        open_image(file)
    assert str(refusal.value).startswith(f"cannot read {file}: {why}")
    with pytest.raises(UserError) as refusal:
        open_image(BytesIO(content), name="drawing 7")
    assert str(refusal.value).startswith(f"cannot read drawing 7: {why}")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        open_image(tmp_path / "gone.png")
    assert str(refusal.value) == f"cannot read {tmp_path / 'gone.png'}: no such file."
    with pytest.raises(UserError) as refusal:
        open_image(tmp_path)
    assert str(refusal.value) == f"cannot read {tmp_path}: it is a folder."


@pytest.mark.parametrize("pixels", [1100, 2100, 9000], ids=["above", "above twice", "far above"])
def test_too_many_pixels_are_refused(pixels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "huge.png"
    Image.new("1", (100, pixels // 100)).save(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UserError) as refusal:
        open_image(file)
    assert str(refusal.value) == f"cannot read {file}: it has more than 1,000 pixels. Make it smaller."


def test_a_broken_note_about_the_picture_does_not_spoil_it() -> None:
    file = BytesIO()
    Image.new("RGB", (8, 8), RED).save(file, format="PNG", exif=b"Exif\0\0broken")
    file.seek(0)
    assert set(colours(open_image(file))) == {RED}


def test_a_damaged_avif_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.avif"
    Image.new("RGB", (8, 8)).save(file)

    def broken(_: object) -> None:
        raise RuntimeError("Failed to decode frame 0: Decoding of color planes failed")

    monkeypatch.setattr("PIL.AvifImagePlugin.AvifImageFile.load", broken)
    with pytest.raises(UserError, match="a.avif: it is broken .Failed to decode frame 0: Decoding of color planes"):
        open_image(file)


PARTS = 1_000_000


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_a_tiff_of_a_million_parts_is_refused_before_they_are_listed(order: str, big: bool) -> None:
    """Pillow would take eight seconds for them, each time."""
    sizes = [(256, 1), (257, PARTS), (258, 8), (259, 1), (262, 1), (277, 1), (278, 1)]
    after = 16 + 8 + 20 * 9 + 8 if big else 8 + 2 + 12 * 9 + 4
    entries = [*((tag, 1, value) for tag, value in sizes), (273, PARTS, after), (279, PARTS, after)]
    entry, head = (f"{order}HHQQ", f"{order}HHHQQ") if big else (f"{order}HHII", f"{order}HIH")
    start = struct.pack(head, 43, 8, 0, 16, len(entries)) if big else struct.pack(head, 42, 8, len(entries))
    content = (b"II" if order == "<" else b"MM") + start
    content += b"".join(struct.pack(entry, tag, 4, count, value) for tag, count, value in sorted(entries))
    content += bytes(8 if big else 4) + bytes(4 * PARTS)
    with pytest.raises(UserError, match="it is a TIFF in 1,000,000 parts, which take too long. Save it again.$"):
        open_image(BytesIO(content))


def test_a_tiff_of_a_strip_for_each_line_is_read() -> None:
    image = Image.new("L", (2, 500), 7)
    file = BytesIO()
    image.save(file, format="TIFF", compression="tiff_adobe_deflate", strip_size=1)
    assert _tiff_parts(file) == 500
    assert colours(open_image(file)) == [(7, 7, 7)] * 1000


@pytest.mark.skipif(os.name != "posix", reason="there are no such files")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for name in ("pipe.png", "pipe"):
        os.mkfifo(tmp_path / "photos" / "a" / name)
    pipe = tmp_path / "photos" / "a" / "pipe.png"
    with Room(10).for_image(pipe), pytest.raises(UserError) as raised:
        open_image(pipe)
    assert str(raised.value).startswith(f"cannot read {pipe}: it is not a file, but a pipe")
    assert images_below(tmp_path / "photos") == [pipe]  # by its name; the other is judged by its content, and has none


def test_a_jpeg_of_thousands_of_passes_is_refused_before_it_is_decoded() -> None:
    content = scans(2000, 2000, 600)
    with pytest.raises(UserError, match="it is stored in 60. passes, which take too long. Save it again.$"):
        open_image(BytesIO(content), name="it")


def test_large_pictures_wait_for_room(tmp_path: Path) -> None:
    Image.new("1", (100, 100)).save(tmp_path / "a.png")
    room, order = Room(15_000), list[str]()

    def second() -> None:
        with room.for_image(tmp_path / "a.png"):
            order.append("second")

    with room.for_image(tmp_path / "a.png"), room.for_image(None):
        other = Thread(target=second)
        other.start()
        other.join(0.1)
        order.append("first")
    other.join(HANGS)
    assert order == ["first", "second"]
