#!/bin/sh
# Builds the C++ parts with AddressSanitizer and UndefinedBehaviorSanitizer and runs their test on
# every instruction set of this processor; then does so for ARM, in an emulator.
#
# What is missing for a check is named, and the check is counted as not run.
set -eu
cd "$(dirname "$0")/.."
build=${PEAGLE_CHECK_BUILD:-build/check}
done_checks=0
missing_checks=0

# build_test FOLDER [CMAKE OPTIONS]
build_test() {
  folder=$1
  shift
  cmake -S . -B "$folder" $generator -DPEAGLE_KERNELS_TEST=ON "$@" >"$folder.log" 2>&1 &&
    cmake --build "$folder" --parallel 2 >>"$folder.log" 2>&1 ||
    { cat "$folder.log"; exit 1; }
}

missing() {
  echo "Not run: $1 needs $2."
  missing_checks=$((missing_checks + 1))
}

mkdir -p "$build"
generator=
if command -v ninja >/dev/null; then generator="-G Ninja"; fi
if ! command -v cmake >/dev/null; then
  missing "the native step's check" "CMake"
elif ! command -v "${CXX:-c++}" >/dev/null; then
  missing "the native step's check" "a C++ compiler"
else
  echo "With sanitizers, on this processor:"
  build_test "$build/sanitized" -DPEAGLE_SANITIZE=address,undefined
  UBSAN_OPTIONS=print_stacktrace=1 "$build/sanitized/kernels_test"
  done_checks=$((done_checks + 1))

  emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
  if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
    missing "the check on ARM" "aarch64-linux-gnu-g++"
  elif [ -z "$emulator" ]; then
    missing "the check on ARM" "qemu-aarch64"
  else
    echo "On ARM, emulated:"
    build_test "$build/arm" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
      -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
    "$emulator" -cpu max "$build/arm/kernels_test"
    done_checks=$((done_checks + 1))
  fi
fi
echo "$done_checks checks passed, $missing_checks not run."
