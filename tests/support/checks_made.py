"""Has checks made before processes are forked: imported after everything of the package that they need."""

from tests.support.speedups import make_checks

make_checks()
