"""Saving, loading and memory mapping of anchor tables."""

import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewfold.embeddings import AnchorEmbedding
from fewfold.embeddings.files import save_load as export_module
from fewfold.embeddings.files.file_schema import FORMAT
from fewfold.embeddings.files.mapped import MappedAnchors
from fewfold.embeddings.files.save_load import Sizes, load_anchors, save_anchors
from fewfold.embeddings.files.stored_anchors import Stored
from tests.fuzz.mutations import giant, pack, unpack

V, D, K = 200, 12, 20
WIDTHS = {"full": None, "width 4": 4}


def made(width: int | None = 4, *, share: float = 0.5, **options: Any) -> AnchorEmbedding:
    """A table with zeros in about this share of its transform, and rows without any entry."""
    generator = torch.Generator().manual_seed(0)
    table = AnchorEmbedding(V, D, anchors=K, width=width, generator=generator, **options)
    with torch.no_grad():
        table.transform *= torch.rand(table.transform.shape, generator=generator) > share
        table.transform[:3] = 0
    return table


def dense(table: AnchorEmbedding) -> Tensor:
    if table.slots is None:
        return table.transform.detach()
    out = torch.zeros(V, len(table.anchors))
    return out.scatter_add_(1, table.slots.long(), table.transform.detach())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "table.safetensors"


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_what_is_loaded_is_what_was_saved(
    file: Path, width: int | None, share: float, signed: bool
) -> None:
    table = made(width, share=share, signed=signed, padding_idx=5)
    sizes = save_anchors(table, file)
    same = load_anchors(file)
    torch.testing.assert_close(same.weight, table.weight)
    torch.testing.assert_close(MappedAnchors(file).dense(), table.weight.detach())
    assert (same.signed, same.padding_idx, same.nonzeros()) == (signed, 5, table.nonzeros())
    assert sizes.nonzeros == table.nonzeros()
    assert sizes.parameters == sizes.anchors * D + sizes.nonzeros == same.size()
    assert sizes.bytes == file.stat().st_size
    assert MappedAnchors(file).sizes == sizes
    assert os.listdir(file.parent) == [file.name]
    if same.slots is not None:  # as training wants them
        assert (same.slots.long().sort(1).values.diff(dim=1) > 0).all()


def test_double_precision_is_kept_to_the_bit(file: Path) -> None:
    table = made(None, dtype=torch.float64)
    save_anchors(table, file, anchors=torch.float64, values=torch.float64)
    offsets, slots, values = Stored.open(file).all()
    rows = torch.arange(V).repeat_interleave(offsets.diff())
    transform = torch.zeros(V, K, dtype=torch.float64)
    transform[rows, slots] = values
    assert torch.equal(transform, table.transform)
    assert torch.equal(transform @ Stored.open(file).all_anchors(), table.weight)
    assert load_anchors(file).anchors.dtype == torch.float64


def test_anchors_without_rows_are_left_out(file: Path) -> None:
    table = made(None)
    with torch.no_grad():
        table.transform[:, [0, 7, 19]] = 0
    sizes = save_anchors(table, file)
    assert sizes.anchors == K - 3
    torch.testing.assert_close(load_anchors(file).weight, table.weight)


def test_anchors_that_are_not_active_are_left_out(file: Path) -> None:
    table = made(None)
    table.active = 6
    assert save_anchors(table, file).parameters == table.size()
    torch.testing.assert_close(load_anchors(file).weight, table.weight)


@pytest.mark.parametrize("signed", [False, True])
def test_one_byte_is_off_by_at_most_half_a_scale(file: Path, signed: bool) -> None:
    table = made(None, signed=signed)
    with torch.no_grad():
        table.anchors *= torch.logspace(-3, 3, K)[:, None]
        table.transform *= torch.logspace(2, -2, K)
    save_anchors(table, file, anchors=torch.int8, values=torch.int8)
    stored = Stored.open(file)
    anchors, transform = table.anchors.detach(), table.transform.detach()
    top, most = anchors.abs().amax(1), transform.abs().amax(0)
    assert ((stored.all_anchors() - anchors).abs().amax(1) <= top / 127 / 2 * 1.0001).all()
    kept = dense(load_anchors(file))
    step = most / (127 if signed else 255)
    assert ((kept - transform).abs().amax(0) <= step / 2 * 1.0001).all()
    # So a vector is off by half a step of each anchor it mixes, and half of each of its weights.
    each = transform.abs() @ (top / 254) + (transform != 0).float() @ (step / 2 * top * 1.01)
    off = (load_anchors(file).weight.detach() - table.weight.detach()).abs().amax(1)
    assert (off <= each * 1.01).all()


@pytest.mark.parametrize(
    ("dtype", "relative"),
    [(torch.float16, 1e-3), (torch.bfloat16, 8e-3), (torch.int8, 8e-3), (torch.float32, 1e-6)],
)
def test_smaller_numbers_smaller_files(file: Path, dtype: torch.dtype, relative: float) -> None:
    table = made(8)
    whole = save_anchors(table, file).bytes
    assert save_anchors(table, file, anchors=dtype, values=dtype).bytes <= whole
    mapped, expected = MappedAnchors(file).dense(), table.weight.detach()
    assert float((mapped - expected).norm() / expected.norm()) < relative
    torch.testing.assert_close(load_anchors(file).weight.detach(), mapped)


def test_the_layout_that_is_smaller_is_chosen(file: Path) -> None:
    table = made(4, share=0.0)  # three rows are empty: cheaper to pad them
    save_anchors(table, file)
    assert set(load_file(file)) == {"anchors", "slots", "values"}
    assert load_file(file)["slots"].dtype == torch.uint8
    save_anchors(made(4, share=0.6), file)
    found = load_file(file)
    assert found["lengths"].dtype == torch.uint8
    assert found["slots"].shape == (made(4, share=0.6).nonzeros(),)


def test_many_anchors_take_two_bytes(file: Path) -> None:
    table = AnchorEmbedding(900, 4, anchors=300, width=2)
    save_anchors(table, file)
    assert load_file(file)["slots"].dtype == torch.int16
    torch.testing.assert_close(load_anchors(file).weight, table.weight)


@pytest.mark.parametrize("share", [0.0, 0.5], ids=["one width", "rows"])
def test_lookups_of_any_shape(file: Path, share: float) -> None:
    table = made(share=share)
    save_anchors(table, file)
    mapped, whole = MappedAnchors(file), table.weight.detach()
    torch.testing.assert_close(mapped[7], whole[7])
    torch.testing.assert_close(mapped[[199, 0, 64, 63]], whole[[199, 0, 64, 63]])
    ids = torch.randint(V, (3, 4, 5), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mapped[ids], whole[ids])
    assert mapped[torch.empty(0, dtype=torch.int64)].shape == (0, D)
    assert len(mapped) == V
    for wrong in (-1, V):
        with pytest.raises(IndexError, match="between 0 and 199"):
            mapped[wrong]
    with pytest.raises(TypeError, match="integers"):
        mapped[0.5]


def test_a_lookup_reads_only_its_rows(file: Path) -> None:
    """Every other page may be rubbish, and nobody notices."""
    table = made(share=0.0)
    save_anchors(table, file)
    tensors = load_file(file)
    tensors["values"][:100] = torch.nan
    tensors["slots"][:100] = 255
    save_file(tensors, file, metadata(file))
    mapped = MappedAnchors(file)
    torch.testing.assert_close(mapped[150], table.weight.detach()[150])
    with pytest.raises(ValueError, match="damaged"):
        mapped[50]
    with pytest.raises(ValueError, match="damaged"):
        load_anchors(file)


def metadata(file: Path) -> dict[str, str]:
    raw = file.read_bytes()
    about: dict[str, str] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])[
        "__metadata__"
    ]
    return about


def changed(tensors: dict[str, Tensor], name: str, at: int, value: float) -> None:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[at] = value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slots", 200, "slots name anchors that do not exist"),
        ("values", torch.nan, "values are not finite"),
        ("anchors", torch.inf, "anchors are not finite"),
        ("lengths", 3, "lengths do not add up"),
        ("starts", 9, "lengths do not fit starts"),
    ],
)
def test_damage_is_found_when_loading(file: Path, name: str, value: float, message: str) -> None:
    save_anchors(made(), file)
    tensors = load_file(file)
    changed(tensors, name, 0, value)
    save_file(tensors, file, metadata(file))
    with pytest.raises(ValueError, match=message):
        load_anchors(file)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"format": "other"}, "does not hold anchors"),
        ({"version": "3"}, "upgrade fewfold"),
        ({"rows": "many"}, "metadata"),
        ({"rows": "-4"}, "cannot have -4 rows"),
        ({"rows": "201"}, r"should be \(201,\)"),
        ({"dim": "13"}, r"anchors should be \(20, 13\)"),
        ({"nonzeros": "3"}, r"should be \(3,\)"),
        ({"padding_idx": "200"}, "is not a row"),
    ],
)
def test_metadata_that_does_not_fit(file: Path, about: dict[str, str], message: str) -> None:
    save_anchors(made(), file)
    save_file(load_file(file), file, metadata(file) | about)
    with pytest.raises(ValueError, match=message):
        MappedAnchors(file)


def test_parts_that_are_missing_or_foreign(file: Path) -> None:
    with pytest.raises(FileNotFoundError, match="save_anchors"):
        load_anchors(file)
    file.write_bytes(b"something else entirely")
    with pytest.raises(ValueError, match="not a safetensors file"):
        load_anchors(file)
    save_file({"weight": torch.zeros(2, 2)}, file)
    with pytest.raises(ValueError, match="does not hold anchors"):
        load_anchors(file)
    save_file({"weight": torch.zeros(2, 2)}, file, {"format": FORMAT, "version": "1"})
    with pytest.raises(ValueError, match="metadata lacks 'rows'"):
        load_anchors(file)
    save_anchors(made(), file)
    tensors = load_file(file)
    del tensors["values"]
    save_file(tensors, file, metadata(file))
    with pytest.raises(ValueError, match="missing or unexpected tensors: values"):
        load_anchors(file)


def test_flipped_bytes_are_found_or_harmless(file: Path) -> None:
    save_anchors(made(), file, values=torch.float16)
    good = file.read_bytes()
    generator = torch.Generator().manual_seed(3)
    found = 0
    head = int.from_bytes(good[:8], "little") + 8
    for upto in [head] * 300 + [len(good)] * 200:
        raw = bytearray(good)
        at = int(torch.randint(upto, (), generator=generator))
        raw[at] ^= 1 << int(torch.randint(8, (), generator=generator))
        file.write_bytes(raw)
        try:
            load_anchors(file)
            MappedAnchors(file).dense()
        except ValueError:
            found += 1
    assert found > 250
    file.write_bytes(good[:-7])
    with pytest.raises(ValueError, match="damaged"):
        load_anchors(file)


def test_an_old_file_survives_a_failure(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made()
    save_anchors(table, file)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module.os, "fsync", lambda _: None)
    monkeypatch.setattr(export_module.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_anchors(made(None), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_files_have_the_rights_of_this_user(file: Path) -> None:
    save_anchors(made(), file)
    plain = file.with_name("plain")
    plain.touch()
    assert file.stat().st_mode == plain.stat().st_mode


def test_what_cannot_be_saved_is_said(file: Path) -> None:
    table = made()
    with pytest.raises(ValueError, match=r"anchors must be one of .*int8, got torch.int32"):
        save_anchors(table, file, anchors=torch.int32)
    with torch.no_grad():
        table.anchors[0, 0] = 1e10
    with pytest.raises(ValueError, match=r"do not fit torch.float16.*write anchors=torch.float32"):
        save_anchors(table, file, anchors=torch.float16)
    with torch.no_grad():
        table.anchors[0, 0] = torch.nan
    with pytest.raises(ValueError, match="has training diverged"):
        save_anchors(table, file)
    assert not file.exists()


def test_sizes_for_a_person() -> None:
    text = str(Sizes(1_000_000, 200, 512, 8_000_000, 48_000_000))
    assert "8,102,400 parameters" in text
    assert "16.7 times fewer" in text


def test_full_transforms_need_no_slots(tmp_path: Path) -> None:
    table = AnchorEmbedding(300, 8, anchors=20, signed=True)
    sizes = save_anchors(table, tmp_path / "full", values=torch.int8)
    assert sizes.bytes < 300 * 20 + 20 * 8 * 4 + 1000
    torch.testing.assert_close(
        load_anchors(tmp_path / "full").weight, table.weight, atol=0.1, rtol=0
    )
    ids = torch.tensor([3, 299, 3])
    torch.testing.assert_close(
        MappedAnchors(tmp_path / "full")[ids], load_anchors(tmp_path / "full")(ids).detach()
    )


def test_the_first_few_need_no_slots(tmp_path: Path) -> None:
    table = AnchorEmbedding(300, 8, anchors=40, signed=True)
    lengths = torch.arange(300) % 17
    with torch.no_grad():
        table.transform.mul_(torch.arange(40) < lengths.unsqueeze(1))
        table.transform[50, 3] = 0  # a gap is kept as a zero
    sizes = save_anchors(table, tmp_path / "few", values=torch.int8)
    assert sizes.bytes < int(lengths.sum()) + 300 + 17 * 8 * 4 + 1200
    again = load_anchors(tmp_path / "few")
    torch.testing.assert_close(again.weight, table.weight, atol=0.1, rtol=0)
    ids = torch.tensor([16, 0, 299, 50])
    torch.testing.assert_close(MappedAnchors(tmp_path / "few")[ids], again(ids).detach())


def laid_out(layout: str, signed: bool) -> AnchorEmbedding:
    """A table that is kept in this layout, however few bits an entry has: none is near zero."""
    generator = torch.Generator().manual_seed(2)
    table = AnchorEmbedding(V, D, anchors=K, signed=signed, generator=generator)
    sizes = 0.6 + 0.4 * torch.rand(V, K, generator=generator)
    signs = torch.randint(2, (V, K), generator=generator) * 2 - 1 if signed else 1
    drawn = torch.rand(V, K, generator=generator).argsort(1)
    own = torch.arange(V).unsqueeze(1) % 9
    held = {
        "full": drawn >= 0,
        "one width": drawn < 4,
        "rows": drawn < torch.where(own == 8, 9, own.clamp(max=1)),
        "first few": torch.arange(K) < torch.where(own == 8, K, own),
    }[layout]
    with torch.no_grad():
        table.transform.copy_(sizes * signs * held * torch.logspace(-1, 1, K))
    return table


PARTS = {
    "full": {"values"},
    "one width": {"slots", "values"},
    "rows": {"slots", "values", "lengths", "starts"},
    "first few": {"values", "lengths", "starts"},
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("layout", PARTS)
def test_few_bits_in_every_layout(file: Path, layout: str, bits: int, signed: bool) -> None:
    table = laid_out(layout, signed)
    save_anchors(table, file, values=torch.int8, bits=bits)
    tensors = load_file(file)
    assert set(tensors) == PARTS[layout] | {"anchors", "value_scales"}
    transform = table.transform.detach()
    count = {"full": K, "one width": 4}.get(layout, table.nonzeros())
    packed = tensors["values"]
    assert packed.shape[-1] == -(-count * bits // 8)
    top = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    step = transform.abs().amax(0) / top
    expected = (transform / step).nan_to_num().round() * step @ table.anchors.detach()
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    close(load_anchors(file).weight.detach(), expected)
    mapped = MappedAnchors(file)
    close(mapped.dense(), expected)
    ids = torch.tensor([199, 3, 64, 63, 0, 199])
    close(mapped[ids], expected[ids])
    assert metadata(file)["version"] == ("1" if bits == 8 else "2")
    assert ("bits" in metadata(file)) == (bits < 8)


def test_few_bits_of_a_table_of_zeros(file: Path) -> None:
    table = made(None, share=1.0)
    assert save_anchors(table, file, values=torch.int8, bits=3).nonzeros == 0
    assert not load_anchors(file).weight.any()
    assert not MappedAnchors(file).dense().any()


def test_a_lookup_of_few_bits_reads_only_its_rows(file: Path) -> None:
    """Damage elsewhere is noticed by whoever reads everything, and by nobody else."""
    save_anchors(laid_out("first few", True), file, values=torch.int8, bits=5)
    before = MappedAnchors(file)[[150, 199]]
    tensors = load_file(file)
    tensors["values"][:50] = 255 - tensors["values"][:50]
    tensors["lengths"][5] += 2
    save_file(tensors, file, metadata(file))
    torch.testing.assert_close(MappedAnchors(file)[[150, 199]], before)
    with pytest.raises(ValueError, match="damaged: lengths do not add up"):
        load_anchors(file)


@pytest.mark.parametrize("layout", PARTS)
@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"bits": "9"}, "zero cannot be 15 of 9 bits"),
        ({"bits": "4"}, "damaged"),
        ({"bits": "few"}, "metadata"),
        ({"zero": "14"}, "zero cannot be 14 of 5 bits"),
        ({"zero": "0"}, "zero cannot be 0 of 5 bits"),
        ({"values": "7"}, "damaged"),
        ({"layout": "another"}, "tensors for 'another'"),
        ({"version": "1"}, "damaged"),
    ],
)
def test_bits_that_do_not_fit(file: Path, layout: str, about: dict[str, str], message: str) -> None:
    save_anchors(laid_out(layout, True), file, values=torch.int8, bits=5)
    save_file(load_file(file), file, metadata(file) | about)
    with pytest.raises(ValueError, match=message):
        load_anchors(file)


def test_mapped_few_bits_are_checked(file: Path) -> None:
    """Also where no row but those asked for is read."""
    save_anchors(laid_out("rows", True), file, values=torch.int8, bits=5)
    tensors, about = load_file(file), metadata(file)
    save_file({name: part for name, part in tensors.items() if name != "slots"}, file, about)
    with pytest.raises(ValueError, match="tensors for 'rows'"):
        MappedAnchors(file)
    tensors["lengths"][0] = K + 1
    save_file(tensors, file, about)
    with pytest.raises(ValueError, match="longer than there are anchors"):
        MappedAnchors(file)[0]
    tensors = {**tensors, "lengths": tensors["lengths"].clone()}
    tensors["values"][:] = 255  # of five bits 31 is one more than any that is written
    tensors["lengths"][0] = 1
    save_file(tensors, file, about)
    with pytest.raises(ValueError, match="beyond their range"):
        MappedAnchors(file)[0]
    save_anchors(laid_out("first few", True), file, values=torch.int8, bits=5)
    tensors = load_file(file)
    tensors["values"] = torch.cat([tensors["values"], tensors["values"][:1]])
    save_file(tensors, file, metadata(file))
    with pytest.raises(ValueError, match="values should be"):
        MappedAnchors(file)


def test_bits_are_a_whole_number(file: Path) -> None:
    for bits in (2.5, "4"):
        with pytest.raises(TypeError, match="bits must be an int"):
            save_anchors(made(), file, values=torch.int8, bits=bits)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", PARTS)
def test_packed_values_that_are_cut_short(file: Path, layout: str) -> None:
    save_anchors(laid_out(layout, True), file, values=torch.int8, bits=6)
    tensors = load_file(file)
    tensors["values"] = tensors["values"][..., :-1].contiguous()
    save_file(tensors, file, metadata(file))
    with pytest.raises(ValueError, match="damaged"):
        MappedAnchors(file)[199]
    with pytest.raises(ValueError, match="damaged"):
        load_anchors(file)


def test_flipped_bytes_of_few_bits_are_found_or_harmless(file: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    for layout in PARTS:
        save_anchors(laid_out(layout, True), file, values=torch.int8, bits=5)
        good = file.read_bytes()
        head = int.from_bytes(good[:8], "little") + 8
        for upto in [head] * 60 + [len(good)] * 40:
            raw = bytearray(good)
            at = int(torch.randint(upto, (), generator=generator))
            raw[at] ^= 1 << int(torch.randint(8, (), generator=generator))
            file.write_bytes(raw)
            try:
                MappedAnchors(file).dense()
                load_anchors(file)
            except ValueError:  # and nothing else
                continue


@pytest.mark.parametrize(("values", "bits"), [(torch.int8, 1), (torch.int8, 9), (torch.float16, 6)])
def test_bits_that_cannot_be_written(file: Path, values: torch.dtype, bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits must be between 2 and 8.*got {bits} and"):
        save_anchors(made(), file, values=values, bits=bits)
    assert not file.exists()


def test_numbers_that_are_too_large_are_refused(file: Path) -> None:
    """Finite as they are, a sum of products of them would not be."""
    table = made()
    save_anchors(table, file)
    tensors, about = unpack(file.read_bytes())
    dtype, shape, raw = tensors["anchors"]
    tensors["anchors"] = (dtype, shape, torch.tensor(3e38).numpy().tobytes() + raw[4:])
    file.write_bytes(pack(tensors, about))
    for read in (load_anchors, MappedAnchors):
        with pytest.raises(ValueError, match=f"{file.name} is damaged: anchors are not finite, or"):
            read(file)
    with torch.no_grad():
        table.anchors[0, 0] = 3e38
    with pytest.raises(ValueError, match="not finite, or too large; has training diverged"):
        save_anchors(table, file)


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows", "\uff15\uff10"), ("rows", " 50"), ("rows", "9" * 5000), ("dim", "1e1"),
     ("signed", "2"), ("anchors", "-0"), ("nonzeros", ""), ("padding_idx", "x")],
)  # fmt: skip
def test_metadata_are_numbers_as_they_were_written(file: Path, name: str, text: str) -> None:
    save_anchors(made(), file)
    tensors, about = unpack(file.read_bytes())
    file.write_bytes(pack(tensors, {**about, name: text}))
    with pytest.raises(ValueError, match=f"{file.name} is damaged: its metadata cannot be used"):
        load_anchors(file)


def test_a_file_that_claims_to_be_giant_is_refused_unread(file: Path) -> None:
    for seed in range(5):
        save_anchors(made(), file)
        giant(file, random.Random(seed), 1 << 40)
        with pytest.raises(ValueError, match=f"{file.name} is damaged: .* should be"):
            load_anchors(file)
