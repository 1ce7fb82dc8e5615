#!/bin/sh
# ./serve.sh [--port 8000] [--host 127.0.0.1]: the model over HTTP, in OpenAI's form. A key is asked for where API_KEY is set (.env).
CDPATH='' cd "$(dirname "$0")" || exit
[ ! -d .venv ] || PATH=$PWD/.venv/bin:$PATH
# shellcheck source=/dev/null
. ./env.sh
exec python server.py "$@"
