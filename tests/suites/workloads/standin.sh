#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for the program as which it is called: it prints how, and what it was given of GPUs. A server then answers
# where the program says that it is ready; python ends, a node of Ray waits, and bash is the shell.
set -eu
program=$(basename "$0")
case $program in
bash) exec sh "$@" ;;
python) port='' ;;
ray)
	[ "${1:-}" = start ] || exit 0
	port=''
	;;
start-notebook.py) port=8888 ready=api ;;
tritonserver) port=8000 ready=v2/health/ready ;;
vllm) port=8000 ready=health ;;
esac
echo "$program $*"
env
for device in /dev/nvidia[0-9]*; do
	[ ! -e "$device" ] || echo "device $device"
done
if [ -n "$port" ]; then
	mkdir -p "/www/$(dirname "$ready")"
	: >"/www/$ready"
	httpd -p "$port" -h /www
elif [ "$program" != ray ]; then
	exit 0
fi
# The first process of a container ends by a signal only if it has asked for it.
trap 'exit 0' TERM
sleep 86400 &
wait
