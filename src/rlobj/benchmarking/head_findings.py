"""What measured heads say: ours beside the best of the others, and beside the bare products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from rlobj.benchmarking.head_methods import METHODS, MODES, OURS, PRODUCTS, Point
from rlobj.benchmarking.tables import Finding

__all__ = ["Row", "cpu_findings", "gpu_findings", "memory_ratio", "ratio", "summary"]


@dataclass(frozen=True)
class Row:
    """One method at one point.

    Attributes:
        method: its name.
        point: the head.
        seconds: the least of each round; empty where skipped.
        mib: peak memory above inputs and outputs.
        skipped: why there is no measurement.
    """

    method: str
    point: Point
    seconds: tuple[float, ...] = ()
    mib: float | None = None
    skipped: str | None = None


def ratio(row: Row, base: Row) -> float:
    """Time of one method over another's: of the least times of each round, the median of rounds."""
    return median(a / b for a, b in zip(row.seconds, base.seconds, strict=True))


def memory_ratio(row: Row, base: Row) -> float:
    """Memory of one method over another's; less than a tenth of a MiB counts as that."""
    return max(row.mib or 0.0, 0.1) / max(base.mib or 0.0, 0.1)


class _Measured:
    """Rows by method and point."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.by = {(row.method, row.point): row for row in rows if row.skipped is None}
        self.points = list(dict.fromkeys(point for _, point in self.by))

    def others(self, point: Point) -> list[Row]:
        """All that is no part of rlobj, plain autograd too."""
        mine = (OURS, PRODUCTS)
        return [row for (name, at), row in self.by.items() if at == point and name not in mine]

    def has_peer(self, point: Point) -> bool:
        """Whether another library was measured there."""
        return any(row.method not in METHODS for row in self.others(point))

    def against(
        self,
        points: Iterable[Point],
        base: Callable[[Point], Row | None],
        compare: Callable[[Row, Row], float] = ratio,
    ) -> dict[Point, tuple[float, str]]:
        """Ours over another at each point where both were measured, and the other's name."""
        found = {}
        for point in points:
            ours, other = self.by.get((OURS, point)), base(point)
            if ours is not None and other is not None:
                found[point] = (compare(ours, other), other.method)
        return found

    def fastest(self, point: Point) -> Row | None:
        """The other that takes the least time."""
        return min(self.others(point), key=lambda row: min(row.seconds), default=None)

    def leanest(self, point: Point) -> Row | None:
        """The other that takes the least memory."""
        return min(self.others(point), key=lambda row: row.mib or 0.0, default=None)

    def named(self, method: str) -> Callable[[Point], Row | None]:
        """The method of this name, where it was measured."""
        return lambda point: self.by.get((method, point))


def cpu_findings(rows: Iterable[Row]) -> list[Finding]:
    """What was aimed at on a CPU, beside what was reached.

    Beside the fastest and the leanest other there is no verdict where no other library was
    measured: what is faster than plain autograd alone has beaten nobody.
    """
    measured = _Measured(rows)
    narrow = [p for p in measured.points if p.width == 256 and p.mode == "both"]
    wide = [p for p in measured.points if p.width >= 1024]
    plain = [p for p in wide if p.mode != "proxy"]
    proxy = [p for p in wide if p.mode == "proxy"]
    about = f"H 256, {MODES['both']}"
    fastest = measured.against(narrow, measured.fastest)
    leanest = measured.against(narrow, measured.leanest, memory_ratio)
    floor = measured.against(plain, measured.named(PRODUCTS))
    proxy_floor = measured.against(proxy, measured.named(PRODUCTS))
    trl = measured.against(wide, measured.named("TRL fused"))
    peers = all(measured.has_peer(point) for point in narrow)
    return _told(
        summary(about, "the time of the fastest other", fastest, 0.80, peers),
        summary(about, "the memory of the leanest other", leanest, 0.35, peers),
        summary("H 1,024", "the time of the bare products", floor, 1.10),
        summary("H 1,024 and the proxy", "the time of the bare products", proxy_floor, 1.10),
        summary("H 1,024", "the time of TRL's fused head", trl, 0.75),
    )


def gpu_findings(rows: Iterable[Row]) -> list[Finding]:
    """What was aimed at on a GPU, beside what was reached."""
    measured = _Measured(rows)
    told: list[Finding | None] = []
    products, points = measured.named(PRODUCTS), measured.points
    for width, bound in ((2048, 1.30), (4096, 1.15)):
        forward = [p for p in points if p.width == width and not p.backward and p.mode != "proxy"]
        found = measured.against(forward, products)
        told.append(summary(f"GPU, H {width:,}, forward", "the bare products' time", found, bound))
    backward = [p for p in points if p.backward]
    found = measured.against(backward, products)
    told.append(summary("GPU, forward and backward", "the bare products' time", found, 1.12))
    for name, bound in (("TRL fused", 1.0), ("verl Triton", 1 / 1.4)):
        found = measured.against([p for p in points if p.mode != "proxy"], measured.named(name))
        told.append(summary("GPU", f"the time of {name}", found, bound))
    ceiling = measured.against(backward, measured.named("Liger scaled"))
    told.append(summary("GPU, forward and backward", "the time of Liger scaled", ceiling, None))
    gigabytes = [(row.mib or 0.0) * 2**20 / 1e9 for (n, _), row in measured.by.items() if n == OURS]
    if gigabytes:
        most = max(gigabytes)
        text = f"GPU: {most:.2f} GB beyond inputs and outputs (aim: at most 1.40 GB)."
        told.append(Finding(text, reached=most <= 1.4))
    return _told(*told)


def summary(
    about: str,
    of_what: str,
    found: dict[Point, tuple[float, str]],
    bound: float | None,
    peers: bool | None = None,
) -> Finding | None:
    """A sentence on the least and the largest ratio, and at how many points the aim is reached.

    Args:
        about: which points.
        of_what: what ours is over.
        found: the ratio and the name of the other method at each point.
        bound: the aim; None for none.
        peers: where the other differs, whether other libraries are among them: without there is
            no verdict, and the other is named. None where it is the same at each point.
    """
    if not found:
        return None
    least, most = (pick(found.values()) for pick in (min, max))
    ends = dict.fromkeys(
        f"{value:.2f}x" + (f" ({name})" if peers is not None else "")
        for value, name in (least, most)
    )
    text = f"{about}: {' to '.join(ends)} {of_what}"
    if bound is None:
        return Finding(f"{text}.")
    text += f" (aim: at most {bound:.2f}x): "
    if peers is False:
        return Finding(f"{text}no verdict, as no other library was measured.")
    reached = sum(value <= bound for value, _ in found.values())
    if reached == len(found):
        every = "reached" if reached == 1 else f"reached at all {reached} points"
        return Finding(f"{text}{every}.", reached=True)
    point = max(found, key=lambda point: found[point])
    missed = f"reached at {reached} of {len(found)} points" if reached else "not reached"
    return Finding(f"{text}{missed}; farthest at {point}.", reached=False)


def _told(*findings: Finding | None) -> list[Finding]:
    return [finding for finding in findings if finding is not None]
