#!/bin/sh
# Runs the tests of the page, given as arguments, in a real Chromium.
#
# Where there is none, that is said, and the check is counted as not run.
set -eu
cd "$(dirname "$0")/.."
missing=
for program in chromium chromedriver; do
  command -v "$program" >/dev/null || missing="$missing${missing:+ and }$program"
done
if [ -n "$missing" ]; then
  echo "Not run: the page's tests need $missing (Debian: chromium, chromium-driver)."
  echo "0 checks passed, 1 not run."
  exit 0
fi
python -m pytest "$@"
echo "1 checks passed, 0 not run."
