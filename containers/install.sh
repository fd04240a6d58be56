#!/bin/sh
# Install helixfold into /opt/helixfold of a Debian system, as root. Both container recipes run this script, and
# continuous integration runs it in a Debian root (.ci/container).
#
#   install.sh cpu|cuda WHEEL CONSTRAINTS
# shellcheck disable=SC2086 # $compiler and $index hold several words, or none
set -eu
variant=$1 wheel=$2 constraints=$3

case "$variant" in
    cpu) compiler='' index='--index-url https://download.pytorch.org/whl/cpu' ;;
    # Triton needs a C compiler to build the launchers of its kernels at their first use.
    cuda) compiler='gcc libc6-dev python3-dev' index='' ;;
    *) echo "install.sh: the variant must be cpu or cuda, got '$variant'" >&2 && exit 2 ;;
esac

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends ca-certificates python3 python3-venv hhsuite mmseqs2 $compiler
rm -rf /var/lib/apt/lists/*

python3 -m venv /opt/helixfold
# Only PyTorch is installed from its own index; its dependencies are installed from PyPI.
/opt/helixfold/bin/python -m pip install --quiet --no-cache-dir --no-deps -c "$constraints" $index torch
/opt/helixfold/bin/python -m pip install --quiet --no-cache-dir -c "$constraints" "${wheel}[fast,relax,serve]"
# Downloaded parameters go here for any user of the container.
mkdir -m 1777 /cache
/opt/helixfold/bin/helixfold --version
