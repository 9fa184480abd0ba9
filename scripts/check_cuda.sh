#!/bin/sh
# Checks on a GPU that speculation changes no token, and times passes and steps, in five minutes and
# without a network:
#
#     PYTHON=/path/to/python scripts/check_cuda.sh [--seconds 280] [--output FILE]
#
# PYTHON (python3 unless told) must have torch for CUDA and the packages that pyproject.toml names;
# peagle itself need not be installed. `--device cpu --small` runs the same on a processor, with
# models of some thousand numbers.
#
# Exit code: 0 all bits agree, 1 some do not, 2 something is missing (a GPU, a package).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "There is no $python; set PYTHON to one that has torch." >&2
  exit 2
fi
missing=$("$python" - <<'END'
import importlib.util

names = ("filelock gguf huggingface_hub jinja2 numpy platformdirs psutil pydantic yaml rich "
         "safetensors tokenizers torch")
print(*(name for name in names.split() if importlib.util.find_spec(name) is None))
END
)
if [ -n "$missing" ]; then
  echo "$python lacks: $missing. Install them, from wheels where there is no network." >&2
  exit 2
fi
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1
exec "$python" scripts/check_cuda.py "$@"
