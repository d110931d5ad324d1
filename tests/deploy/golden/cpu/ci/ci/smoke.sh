#!/bin/sh
# Serves the configuration, asks it something, and stops it:  sh ci/smoke.sh
set -eu
config=config.yaml
port=${PORT:-18000}
key=${SMOKE_KEY:-only-for-the-smoke-test}
url=http://127.0.0.1:$port
work=$(mktemp -d)

for variable in $(grep -v '^ *#' "$config" | grep -o '\${[A-Za-z_][A-Za-z0-9_]*' | tr -d '${' | sort -u); do
  eval "export $variable=\"\${$variable:-only-for-checks}\""
done

# A key of its own instead of those of the configuration.
llm-inference serve --config "$config" --host 127.0.0.1 --port "$port" --api-key "$key" 2> "$work/log" &
server=$!
trap 'kill "$server" 2> /dev/null || true' EXIT

ask() { # PATH [BODY]: the reply's body; fails unless it is a 200
  python3 - "$url$1" "$key" "${2:-}" << 'PYTHON'
import sys, urllib.request
url, key, body = sys.argv[1:]
headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(url, body.encode() or None, headers), timeout=120) as reply:
    print(reply.read().decode())
PYTHON
}

echo "== it becomes ready"
waited=0
until ask /ready > /dev/null 2>&1; do
  kill -0 "$server" 2> /dev/null || { echo "the server has ended:" >&2; tail -n 40 "$work/log" >&2; exit 1; }
  [ "$waited" -lt 70 ] || { echo "not ready after $waited s:" >&2; tail -n 40 "$work/log" >&2; exit 1; }
  sleep 1
  waited=$((waited + 1))
done

echo "== it answers"
ask /v1/models
ask /v1/completions '{"max_tokens": 8, "model": "SmolLM2-135M-Instruct", "prompt": "Hello"}'

echo "== it stops"
kill -TERM "$server"
trap - EXIT
wait "$server"
echo "all is well"
