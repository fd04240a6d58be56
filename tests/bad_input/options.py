"""Bad options of every command, and what is named by them."""

from pathlib import Path

from tests.bad_input.case import Case, bad

GOOD = b">t\nMKTAYIAKQR\n"


def option(words: str, *says: str) -> Case:
    return bad(f"predict x.fasta {words}", {"x.fasta": GOOD}, *says)


def training(words: str, *says: str) -> Case:
    return bad(f"train {words}", {"empty": Path.mkdir}, *says)


OPTIONS = {
    "an unknown command": bad("fold x.fasta", {"x.fasta": GOOD}, "'fold'", "predict"),
    "a file whose name is an escape sequence": bad(
        "predict x.fasta 'a\x1b]0;b\x07'", {"x.fasta": GOOD}, r"a\x1b]0;b\x07", "--output"
    ),
    "no command": bad("", {}, "COMMAND"),
    "an unknown option": option("--recycle 3", "unknown option --recycle;", "--num-recycles", "--help"),
    "an option of another program's": option("--msa-depth=512", "unknown option --msa-depth", "--help"),
    "a file that is named twice": option("--seed 1 x.fasta", "x.fasta", "'t'", "another target in this file"),
    "an option without its value": option("--num-recycles", "--num-recycles"),
    "recycles below nothing": option("--num-recycles -1", "-1"),
    "recycles that are no number": option("--num-recycles three", "--num-recycles", "three"),
    "recycles that are no whole number": option("--num-recycles 2.5", "--num-recycles", "2.5"),
    "a tolerance that is no number": option("--recycle-tolerance nan", "nan"),
    "a tolerance below nothing": option("--recycle-tolerance -0.5", "-0.5"),
    "an endless tolerance": option("--recycle-tolerance inf", "inf"),
    "no ensemble": option("--num-ensemble 0", "0"),
    "a seed below nothing": option("--seed -3", "-3"),
    "a seed beyond all": option("--seed 99999999999999999999999", "seed", "at most"),
    "a seed beyond 64 bits": option("--seed 18446744073709551616", "seed", "at most 4,611,686,018,427,387,904"),
    "more seeds than anybody has": option("--num-seeds 1000000000000", "--num-seeds", "from 1 to 10,000"),
    "recycles without end": option("--num-recycles 1000000000000", "--num-recycles", "from 0 to 1,000"),
    "an ensemble without end": option("--num-ensemble 1000000", "--num-ensemble", "from 1 to 100"),
    "more processes than fit": option("--device cpu --devices 1000000", "--devices", "from 1 to 1,024"),
    "processes of digits without end": option(f"--device cpu --devices {'9' * 5000}", "--devices", "from 1 to 1,024"),
    "more ranks than fit": option("--ranks-per-target 1000000", "--ranks-per-target", "from 1 to 1,024"),
    "more threads than fit": option("--threads 1000000", "--threads", "from 1 to 1,024"),
    "an unknown type": option("--dtype float8", "float8", "bfloat16"),
    "an unknown model": option("--models model_9", "model_9", "model_1"),
    "a model of complexes without parameters": option("--models model_1_multimer_v3", "model_1_multimer_v3"),
    "a model named twice": option("--models tiny tiny --weights x.fasta", "once", "tiny"),
    "a model without parameters": option("--models model_1", "model_1", "weights download"),
    "an unknown device": option("--device gpu", "gpu", "cuda"),
    "a device that is not there": option("--device cuda:77", "cuda"),
    "devices of no number": option("--device cpu --devices -2", "--devices", "-2"),
    "devices that cannot be divided": option("--device cpu --devices 2 --ranks-per-target 3", "3"),
    "ranks of nothing": option("--ranks-per-target 0", "0"),
    "memory without a unit": option("--memory 8", "--memory", "8GiB"),
    "memory of nothing": option("--memory 0GiB", "--memory", "0GiB"),
    "memory below nothing": option("--memory=-3GiB", "--memory", "-3GiB"),
    "an unknown executor": option("--executor fast", "fast", "spilled"),
    "a spill directory that is not there": option("--spill-directory no", "no", "--spill-directory"),
    "a spill directory that is a file": option("--spill-directory x.fasta", "x.fasta", "--spill-directory"),
    "rows of nothing": option("--max-extra-rows 0", "0"),
    "a day that is none": option("--max-template-date 2021-13-01", "2021-13-01", "year-month-day"),
    "a day in words": option("--max-template-date yesterday", "yesterday", "2021-11-01"),
    "threads of nothing": option("--threads 0", "--threads", "0"),
    "databases twice": option("--databases p.toml --database x.fasta", "--databases", "cannot be combined"),
    "a part that is none": bad("features x.fasta --shard 3", {"x.fasta": GOOD}, "--shard", "'3'", "i/n"),
    "a part beyond the last": bad("features x.fasta --shard 3/2", {"x.fasta": GOOD}, "3/2", "0 to n - 1"),
    "features of nothing": bad("features", {}, "nothing to do", "--structures"),
    "features of a bad sequence": bad("features x.fasta", {"x.fasta": b">t\nMK1\n"}, "x.fasta", "line 2", "column 3"),
    "a training set of no directory": bad("features --structures no", {}, "no"),
    "a training set of no structures": bad("features --structures d", {"d/readme.txt": b"x"}, "d"),
    "a training set and targets": bad("features x.fasta --structures d", {"x.fasta": GOOD}, "cannot be combined"),
    "a training set's option for targets": bad("features x.fasta --distillation", {"x.fasta": GOOD}, "--structures"),
    "a resolution that is none": bad("features --structures d --max-resolution nan", {"d/x.pdb": b"x"}, "nan"),
    "workers below nothing": bad("features --structures d --workers -1", {"d/x.pdb": b"x"}, "workers", "-1"),
    "a doctor for a bad sequence": bad("doctor x.fasta", {"x.fasta": b">t\nMK1\n"}, "x.fasta", "line 2", "column 3"),
    "a doctor for a length without end": bad("doctor --length 1000000000000", {}, "--length", "100,000"),
    "a doctor for no length": bad("doctor --length 0", {}, "--length", "0"),
    "training on nothing": training("", "--output"),
    "training on what is not there": training("no --output run", "no", "cannot be read"),
    "training on an empty directory": training("empty --output run", "empty", "index.tsv"),
    "an unknown setting": training("empty --output run --set foo=1", "foo"),
    "a setting without a value": training("empty --output run --set steps", "steps"),
    "a setting of the wrong kind": training("empty --output run --set steps=many", "steps", "many"),
    "steps below nothing": training("empty --output run --set steps=-1", "steps", "-1"),
    "a setting that is no number": training("empty --output run --set optimizer.learning_rate=nan", "nan"),
    **{
        f"{name}={value}": training(f"empty --output run --set {name}={value}", name.rpartition(".")[2], most)
        for name, value, most in (
            ("model.evoformer.blocks", "100000", "at most 1,000"),
            ("model.evoformer.blocks", "1000000000", "at most 1,000"),
            ("model.extra_msa.blocks", "1000000000", "at most 1,000"),
            ("model.structure.layers", "1000000000", "at most 1,000"),
            ("model.c_z", "1000000000", "at most 8,192"),
            ("model.evoformer.msa_heads", "1000000000", "at most 8,192"),
            ("batch_size", "100000000000", "at most 65,536"),
            ("seed", "100000000000000000000000", "at most 4,611,686,018,427,387,904"),
            ("example.crop_size", "1000000000", "at most 100,000"),
            ("example.max_passes", "1000000000000", "at most 1,001"),
            ("example.sampling.max_extra_msa", "1000000000000", "at most 1,000,000"),
            ("evaluation.num_recycles", "1000000000000", "at most 1,000"),
        )
    },
    "a setting nested without end": training(f"empty --output run --set model={'[' * 100_000}", "model"),
    "training with more processes than fit": training("empty --output run --workers 1000000", "from 0 to 1,024"),
    "a timeout of nothing": training("empty --output run --timeout 0", "--timeout", "0"),
    "an unknown preset": training("empty --output run --preset huge", "huge", "tiny"),
    "a layout that is none": training("empty --output run --layout x=3", "x=3"),
}  # fmt: skip
