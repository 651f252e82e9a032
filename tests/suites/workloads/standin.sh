#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for the program as which it is called: it prints how, and what it was given of GPUs. A server then answers
# where the program says that it is ready; python ends.
set -eu
program=$(basename "$0")
case $program in
python) port='' ;;
start-notebook.py) port=8888 ready=api ;;
tritonserver) port=8000 ready=v2/health/ready ;;
vllm) port=8000 ready=health ;;
esac
echo "$program $*"
env
for device in /dev/nvidia[0-9]*; do
	[ ! -e "$device" ] || echo "device $device"
done
[ -n "$port" ] || exit 0
mkdir -p "/www/$(dirname "$ready")"
: >"/www/$ready"
httpd -p "$port" -h /www
# The first process of a container ends by a signal only if it has asked for it.
trap 'exit 0' TERM
sleep 86400 &
wait
