"""The stream of problems: a function of (seed, index), valid at every index, every law what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import UsageError
from probe.forced import Forced
from probe.names import ComputeType, DType, Epilogue, Layout
from probe.preference import Preference
from probe.problem import Problem
from probe.questions import Questions, _pick, draw, words_of
from probe.stream import KEY, Alignment, Asked, Axis, Law, Output, ProblemStream, RandomRegime, _words

WORDS = st.integers(0, 2**64 - 1)
SEEDS = st.integers(0, 2**60 - 1)


@st.composite
def axes(draw: st.DrawFn, most: int = 5000) -> Axis:
    if draw(st.booleans()):  # 48: a multiple of 16 that e4m3 can take
        return Axis(values=(48, *draw(st.lists(st.integers(1, most), max_size=4))))
    low = draw(st.integers(1, most))
    return Axis(low, low + draw(st.integers(64, most)), draw(st.sampled_from(Law)), draw(st.sampled_from((1, 2, 3, 8))))


@st.composite
def regimes(draw: st.DrawFn) -> RandomRegime:
    some = lambda values: tuple(draw(st.lists(st.sampled_from(values), min_size=1, unique=True)))  # noqa: E731
    dtypes = some((DType.FP16, DType.BF16, DType.E4M3))
    outputs = dict.fromkeys((Output.SAME, *draw(st.lists(st.sampled_from((Output.FP32,)), max_size=1))))
    layouts = dict.fromkeys((Layout.TN, *(() if dtypes == (DType.E4M3,) else some(tuple(Layout)))))
    m, n, k = draw(axes()), draw(axes()), draw(axes())
    multiple = 16 if DType.E4M3 in dtypes else 1
    steps = (16, 64) if dtypes == (DType.E4M3,) else (2, 4, 16, 64)
    least = k.least(multiple)
    assert least is not None
    # no less than the largest m and n need beside the smallest k, and no more than four times as much: K is then cut short at times
    need = (m.high + n.high) * least * 2 + m.high * n.high * 4
    return RandomRegime("any", m, n, k, dtypes, tuple(outputs), tuple(layouts), (False, True) if DType.E4M3 in dtypes else (False,),
                        some((0, 1024, 2**25)), some((0, 2, 7)), (0, *some(steps)), (0, *some(steps)), some(tuple(Alignment)),
                        draw(st.integers(need, 4 * need)), draw(st.integers(1, 3)))


@given(regimes(), SEEDS, st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5))
@settings(max_examples=60)
def test_every_problem_is_valid_and_within_what_was_asked(regime: RandomRegime, seed: int, indices: list[int]) -> None:
    stream = ProblemStream(seed, (), (regime,))
    for index in indices:
        asked = stream.at(index)  # Problem refuses what is no GEMM, the rules of e4m3 among it
        p = asked.problem
        for axis, size in ((regime.m, p.m), (regime.n, p.n), (regime.k, p.k)):
            assert size in axis.values if axis.values else axis.low <= size <= axis.high and size % axis.multiple == 0
        packed = (p.m + p.n) * p.k * p.a_dtype.itemsize + p.m * p.n * p.d_dtype.itemsize
        assert packed <= regime.most_bytes
        assert p.a_dtype in regime.dtypes and p.layout in regime.layouts and p.fast_accumulation in regime.fast_accumulation
        assert {p.a_offset_bytes, p.b_offset_bytes, p.d_offset_bytes} <= set(regime.offsets) and p.c_offset_bytes == p.d_offset_bytes
        for x, dtype in (("a", p.a_dtype), ("b", p.b_dtype), ("d", p.d_dtype)):
            assert (p.leading_dimension(x) - p.stored_shape(x)[1]) * dtype.itemsize in regime.paddings
        assert p.ldc == p.ldd
        told = p.alignments(asked.preference)
        assert told == (256,) * 4 if Alignment.TRUE not in regime.alignments else told in ((256,) * 4, tuple(map(p.alignment, "abcd")))
        assert asked.preference.workspace_bytes in regime.workspaces
        assert asked.preference.reduction_scheme_mask in regime.reduction_schemes


@given(st.lists(regimes(), min_size=1, max_size=3), SEEDS, st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.randoms())
@settings(max_examples=30)
def test_an_index_is_the_same_alone_in_a_batch_and_in_any_order(parts: list[RandomRegime], seed: int, indices: list[int],
                                                                random: object) -> None:
    stream = ProblemStream(seed, (), tuple(parts))
    batch = {index: (stream.at(index), stream.draw_seed(index)) for index in indices}
    random.shuffle(indices)  # type: ignore[attr-defined]
    for index in indices:
        alone = ProblemStream(seed, (), tuple(parts))
        assert (alone.at(index), alone.draw_seed(index)) == batch[index]


def held_to(questions: Questions, stream: ProblemStream) -> None:
    """Each question of a batch is what the stream has at its index."""
    for place, index in enumerate(questions.index.tolist()):
        mine, its = questions.asked(place), stream.at(index)
        assert (mine.source, mine.problem) == (its.source, its.problem)
        told = [p.problem.alignments(p.preference) for p in (mine, its)]
        assert told[0] == told[1] and mine.preference.workspace_bytes == its.preference.workspace_bytes
        assert mine.preference.reduction_scheme_mask == its.preference.reduction_scheme_mask
        assert questions.operand_bytes()[place] == its.problem.total_bytes


@given(st.lists(regimes(), min_size=1, max_size=3), SEEDS, st.integers(0, 2**61), st.integers(1, 40))
@settings(max_examples=40)
def test_a_batch_is_what_its_indices_give_one_by_one(parts: list[RandomRegime], seed: int, begin: int, count: int) -> None:
    stream = ProblemStream(seed, (), tuple(parts))
    batch = draw(stream, begin, begin + count)
    assert batch.index.tolist() == list(range(begin, begin + count))
    held_to(batch, stream)
    again = Questions.from_document(batch.to_document())
    assert [again.asked(i) for i in range(count)] == [batch.asked(i) for i in range(count)]


def test_a_batch_goes_over_the_end_of_the_list() -> None:
    listed = tuple(Asked("list", Problem.gemm(m, 8, 8, DType.FP16, ldc=12, ldd=12, a_offset_bytes=2), Preference(0, 2)) for m in (1, 2, 3))
    stream = ProblemStream(4, listed, (RandomRegime("r", Axis(3, 9), Axis(1, 9), Axis(1, 9)),))
    held_to(draw(stream, 1, 6), stream)


@pytest.mark.parametrize(("fields", "preference"), [
    ({"batch_count": 2}, Preference()), ({"beta": 1.0}, Preference()), ({"epilogue": Epilogue.RELU}, Preference()),
    ({"ldd": 12}, Preference()), ({"c_offset_bytes": 2}, Preference()), ({"sm_count_target": 8}, Preference()),
    ({"compute_type": ComputeType.FP16}, Preference()), ({}, Preference(c_alignment=2)), ({}, Preference(forced=Forced(splitk_num=2)))])
def test_what_the_columns_of_a_batch_cannot_say_is_refused(fields: dict[str, object], preference: Preference) -> None:
    asked = Asked("x", Problem.gemm(8, 8, 8, DType.FP16, **fields), preference)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be asked in a batch"):
        draw(ProblemStream(4, (asked,)), 0, 1)


@given(st.integers(1, 2**31 - 2), st.integers(0, 2**31), st.sampled_from(Law), st.data())
@settings(max_examples=60)
def test_sizes_of_a_batch_are_exact_where_rounding_decides(low: int, more: int, law: Law, data: st.DataObject) -> None:
    """Words on both sides of the border between two sizes, where float64 alone may take the wrong one."""
    axis = Axis(low, min(low + more, 2**31 - 1), law)
    size = data.draw(st.integers(axis.low, axis.high))
    below, above = 0, 2**64  # the least word of `size` by bisection
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if axis.pick(middle) >= size else (middle, above)
    words = [w for w in range(above - 3, above + 3) if 0 <= w < 2**64]
    assert _pick(axis, np.array(words, np.uint64)).tolist() == [axis.pick(w) for w in words]


@given(SEEDS, st.integers(0, 2**62), st.integers(1, 20))
@settings(max_examples=30)
def test_the_words_of_a_batch_are_those_of_the_generator(seed: int, index: int, count: int) -> None:
    got = words_of(seed, np.array([index, index + 1]), count)
    assert [[int(word[i]) for word in got] for i in (0, 1)] == [_words(seed, index + i, 0, count) for i in (0, 1)]


def test_choices_that_are_added_later_move_no_other_choice() -> None:
    plain = RandomRegime("r", Axis(1, 500), Axis(1, 500), Axis(8, 5000))
    more = RandomRegime("r", Axis(1, 500), Axis(1, 500), Axis(8, 5000), outputs=(Output.SAME, Output.FP32), workspaces=(0, 1024),
                        layouts=(Layout.NN, Layout.TT), offsets=(0, 64), alignments=tuple(Alignment))
    one, other = (ProblemStream(3, (), (r,)) for r in (plain, more))
    sizes = [[(p.m, p.n, p.k) for p in (s.at(i).problem for i in range(50))] for s in (one, other)]
    assert sizes[0] == sizes[1] and len(set(sizes[0])) > 40


def _philox(counter: list[int], key: list[int]) -> list[int]:
    """One block of Philox4x64-10, from the paper (Salmon et al. 2011), to hold the words to."""
    mask, a, b = 2**64 - 1, 0xD2E7470EE14C6C93, 0xCA5A826395121157
    x, (k0, k1) = list(counter), key
    for _ in range(10):
        first, second = a * x[0], b * x[2]
        x = [second >> 64 ^ x[1] ^ k0, second & mask, first >> 64 ^ x[3] ^ k1, first & mask]
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & mask, k1 + 0xBB67AE8584CAA73B & mask
    return x


@given(SEEDS, st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_the_words_are_those_of_the_published_generator(seed: int, index: int, use: int) -> None:
    # numpy counts up before the first block
    assert _words(seed, index, use, 8) == [w for block in (1, 2) for w in _philox([block, index, use, 0], [seed, KEY])]


@given(st.integers(1, 10**5), st.integers(0, 10**6), st.sampled_from((1, 7, 8)), st.sampled_from(Law), WORDS, WORDS)
def test_a_law_reaches_both_ends_and_keeps_its_order(low: int, more: int, multiple: int, law: Law, one: int, other: int) -> None:
    axis = Axis(low, low + multiple + more, law, multiple)
    assert axis.pick(0) == axis.least() and axis.pick(2**64 - 1) == axis.greatest()
    assert axis.pick(min(one, other)) <= axis.pick(max(one, other))


def test_the_middle_of_each_law() -> None:
    assert Axis(1, 1023, Law.LOG).pick(2**63) == math.isqrt(1024) and Axis(1, 1023, Law.UNIFORM).pick(2**63) == 512


def test_shares_are_kept() -> None:
    often, seldom = (RandomRegime(name, Axis(1, 9), Axis(1, 9), Axis(1, 9), share=share) for name, share in (("often", 3), ("seldom", 1)))
    stream = ProblemStream(1, (), (often, seldom))
    count = sum(stream.at(i).source == "often" for i in range(2000))
    assert abs(count - 1500) < 5 * math.sqrt(2000 * 0.75 * 0.25)


def test_the_list_comes_first_and_ends_a_stream_without_regimes() -> None:
    listed = tuple(Asked("list", Problem.gemm(m, 8, 8, DType.FP16), Preference()) for m in (1, 2))
    regime = RandomRegime("r", Axis(3, 9), Axis(1, 9), Axis(1, 9))
    both = ProblemStream(1, listed, (regime,))
    assert [both.at(i).source for i in range(4)] == ["list", "list", "r", "r"] and both.length is None
    alone = ProblemStream(1, listed)
    assert alone.length == 2
    with pytest.raises(UsageError, match="index = 2"):
        alone.at(2)


def test_seeds_of_an_index_differ_from_each_other_and_from_those_of_the_next() -> None:
    stream = ProblemStream(1, (), (RandomRegime("r", Axis(3, 9), Axis(1, 9), Axis(1, 9)),))
    seeds = {stream.draw_seed(index, number) for index in range(50) for number in range(10)}
    assert len(seeds) == 500 and max(seeds) < 2**60


@pytest.mark.parametrize(("change", "named"), [
    ({"dtypes": (DType.E4M3,)}, "layout"), ({"dtypes": (DType.E4M3,), "layouts": (Layout.TN,), "n": Axis(1, 15)}, "multiple of 16"),
    ({"dtypes": (DType.FP32,)}, "fp32"), ({"outputs": (Output.BF16,)}, "bf16"), ({"fast_accumulation": (True,)}, "e4m3"),
    ({"offsets": (1,)}, "1 B"), ({"outputs": (Output.FP32,), "paddings": (2,)}, "2 B"), ({"most_bytes": 100}, "100 bytes"),
    ({"layouts": ()}, "layouts"), ({"workspaces": (0, 0)}, "workspaces"), ({"reduction_schemes": (8,)}, "reduction_schemes"),
    ({"share": 0}, "share")])
def test_a_regime_that_gives_no_valid_problem_is_refused(change: dict[str, object], named: str) -> None:
    fields: dict[str, object] = {"name": "r", "m": Axis(1, 64), "n": Axis(1, 64), "k": Axis(1, 64)}
    with pytest.raises(UsageError, match=named):
        RandomRegime(**fields | change)  # type: ignore[arg-type]


def test_a_range_without_a_multiple_is_refused() -> None:
    with pytest.raises(UsageError, match="no multiple of 8"):
        Axis(9, 15, multiple=8)
