"""Simulate a batch on 40 search nodes and 40 GPUs: `python scripts/simulate_fleet.py proteins.fasta --targets 100000`.

Lengths are drawn from the FASTA files. A target takes AlphaFold 2's published times on an A100 (96, 450, 1,240 and
5,660 s for 1,000 to 4,000 residues), times a random factor that no schedule knows. Schedules begin with a forecast that
is wrong by a factor of three, and must learn the pace.
"""

import argparse
from functools import cache
from pathlib import Path

import numpy as np

from data_pipeline.complexes.sequence_files import read_fasta_targets
from data_pipeline.parse.fasta import FastaRecord
from helixfold.cluster.schedule import PoolForecast, Schedule
from helixfold.cluster.simulation import Fleet, OneByOne, Scheduler, simulated_seconds

# Residues and seconds; below 1,000 residues, time falls with the square of the length.
_LENGTHS, _SECONDS = (1000, 2000, 3000, 4000), (96.0, 450.0, 1240.0, 5660.0)
_SLOTS, _SMALL, _LONGEST = 40, 32, (2000, 4500)
_STARTUP, _SPREAD, _WRONG_BY = 40.0, 0.3, 3.0
_ANY_LENGTH = 10**9


@cache
def folding_seconds(residues: int) -> float:
    """Return the seconds of a target on an A100."""
    if residues < _LENGTHS[0]:
        return max(2.0, _SECONDS[0] * (residues / _LENGTHS[0]) ** 2)
    return float(np.exp(np.interp(np.log(residues), np.log(_LENGTHS), np.log(_SECONDS))))


def main() -> None:
    """Print the time of each schedule beside the lower bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fasta", nargs="+", type=Path)
    parser.add_argument("--targets", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    records = [each for path in options.fasta for each in read_fasta_targets(path)]
    known = [min(len(each.sequence), _LONGEST[1]) for each in records if isinstance(each, FastaRecord)]
    residues = random.choice(known, options.targets).tolist()
    factors = np.exp(random.normal(0.0, _SPREAD, options.targets)).tolist()
    print(
        f"{len(residues):,} targets of {min(residues)} to {max(residues)} residues, {np.mean(residues):.0f} on average"
    )
    print(f"{'search a residue':>16} {'lower bound':>12} {'FIFO':>6} {'LPT':>6} {'packed':>6}")
    for search_seconds in (0.005, 0.02, 0.1):

        def seconds(pool: str, target: int, search_seconds: float = search_seconds) -> float:
            length = residues[target]
            return factors[target] * (search_seconds * length if pool == "search" else folding_seconds(length))

        pools = [
            PoolForecast(
                name=name,
                slots=slots,
                longest=longest,
                seconds=lambda length: folding_seconds(length) / _WRONG_BY,
                task_seconds=1200.0,
            )
            for name, slots, longest in (
                ("small", _SMALL, _LONGEST[0]),
                ("large", _SLOTS - _SMALL, _LONGEST[1]),
            )
        ]
        search = PoolForecast(
            name="search",
            slots=_SLOTS,
            longest=_ANY_LENGTH,
            seconds=lambda length: 0.2 * length,
            task_seconds=1200.0,
        )
        fleet = Fleet(search=search, folding=pools, seconds=seconds, startup=_STARTUP)
        least = fleet.least_seconds(residues)
        schedules: list[Scheduler] = [
            OneByOne(residues, fleet, longest_first=False),
            OneByOne(residues, fleet, longest_first=True),
            Schedule(residues, range(len(residues)), search, pools),
        ]
        shares = [least / simulated_seconds(each, fleet) for each in schedules]
        cells = " ".join(f"{share:6.1%}" for share in shares)
        print(f"{search_seconds:14.3f} s {least / 3600:10.1f} h {cells}", flush=True)


if __name__ == "__main__":
    main()
