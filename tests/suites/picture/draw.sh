#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Draws a recording of a terminal:
#
#   draw.sh CAST SVG TITLE [ARGUMENT…]
#
# svg-term-cli, of the npm registry, gets the arguments. In light surroundings the colours are turned.
set -eu
cast=$1 svg=$2 title=$3
shift 3
npx --yes svg-term-cli@2.1.1 --in "$cast" --out "$svg" --no-cursor "$@"
sed -i "1s|>|><title>$title</title><style>@media (prefers-color-scheme:light){:root{filter:invert(1) hue-rotate(180deg) brightness(1.2)}}\
</style>|" "$svg"
