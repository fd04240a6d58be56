"""Input files as people give them to ColabFold: sequences of complexes, and alignments of complexes."""

import numpy as np

FIRST, SECOND, THIRD = "MRILPISTIKGKLNEFVDAVSST", "MPYTVRFTTTARRDLHK", "PIAQIHILEG"
SEQUENCE_FILES = {
    "complexes.fasta": f">dimer\n{FIRST}:{SECOND}\n>alone\n{THIRD}\n"
    f">copies some words\n{THIRD}:{THIRD}:\n{SECOND}:{THIRD}\n",
    "complexes.csv": f"id,sequence\ndimer,{FIRST}:{SECOND}\nlower,{FIRST.lower()}:{THIRD}\nalone,{THIRD}\n",
    "complexes.tsv": f"sequence\tid\n{SECOND}:{FIRST}:{SECOND}\ttrimer\n",
}
# Sequences and copies of each alignment, and how many of its rows are paired and not.
ALIGNMENTS = {
    "heterodimer.a3m": ((FIRST, SECOND), (1, 1), 12, 30),
    "two_and_one.a3m": ((SECOND, FIRST), (2, 1), 9, 20),
    "three_sequences.a3m": ((FIRST, SECOND, THIRD), (1, 2, 1), 25, 40),
    "homotrimer.a3m": ((THIRD,), (3,), 0, 30),
    "alone.a3m": ((FIRST,), (1,), 0, 20),
    "only_pairs.a3m": ((FIRST, THIRD), (1, 1), 30, 0),
    "deep.a3m": ((THIRD, SECOND), (1, 1), 1500, 4000),
}


def alignment_text(name: str) -> str:
    """An a3m of this name: random rows with insertions also at the ends of chains, repeated rows and empty ones."""
    sequences, copies, paired, unpaired = ALIGNMENTS[name]
    rng = np.random.default_rng(sorted(ALIGNMENTS).index(name))
    gaps = ["-" * len(each) for each in sequences]
    rows = [("\t".join(str(101 + index) for index in range(len(sequences))), "".join(sequences))]
    for number in range(paired):
        # Two chains at least, or it would be no pair.
        chosen = rng.permutation(len(sequences))[: rng.integers(2, len(sequences) + 1)]
        parts = [_hit(each, rng) if index in chosen else gaps[index] for index, each in enumerate(sequences)]
        rows.append(("\t".join(f"P{number}_{index}" for index in range(len(sequences))), "".join(parts)))
    for index, sequence in enumerate(sequences):
        if unpaired:
            rows.append((str(101 + index), "".join(_at(index, sequence, gaps))))
        for number in range(unpaired):
            rows.append((f"U{number}\t{rng.integers(9)}", "".join(_at(index, _hit(sequence, rng), gaps))))
            if rng.random() < 0.2:
                rows.append(rows[-1])
            if rng.random() < 0.1:
                rows.append((f"again{number}", rows[-1][1]))
    header = f"#{','.join(str(len(each)) for each in sequences)}\t{','.join(map(str, copies))}\n"
    return header + "".join(f">{title}\n{row}\n" for title, row in rows)


def _at(index: int, row: str, gaps: list[str]) -> list[str]:
    return [*gaps[:index], row, *gaps[index + 1 :]]


def _hit(sequence: str, rng: np.random.Generator) -> str:
    """A sequence with changes, gaps, and insertions before some letters."""
    letters = []
    for letter in sequence:
        chance = rng.random()
        if chance < 0.06:
            letters.append("".join(rng.choice(list("acdwy"), rng.integers(1, 4))))
        other = "-" if chance > 0.9 else str(rng.choice(list("ACDEFGHIKLMNPQRSTVWYXBZU"))) if chance > 0.7 else letter
        letters.append(other)
    return "".join(letters)
