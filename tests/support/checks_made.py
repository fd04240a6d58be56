"""Has checks made before processes are forked: imported after everything of the package that they need."""

from tests.support.repeated_checks import make_checks

make_checks()
