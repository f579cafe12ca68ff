#!/bin/sh
# Rewrites the pinned, hashed requirement files from their .in files. Usage: make lock
set -eu
cd "$(dirname "$0")"
for name in base all dev; do
  uv pip compile -q --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --no-emit-find-links "$name.in" -o "$name.txt"
done
