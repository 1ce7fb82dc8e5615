#!/bin/sh
# sh container.sh: what the Dockerfile starts, with your token, your hub cache and your files. Other words are another command:
# sh container.sh python infer.py --prompt "..."
# MASTER_ADDR=<one of them> sh container.sh on each of the 2 nodes, with runs/ on a disk that all of them see
set -eu
cd "$(dirname "$0")"
if [ -f .env ]; then
    set -a
    # shellcheck source=/dev/null
    . ./.env
    set +a
fi
cache=${HF_HOME:-$HOME/.cache/huggingface}
mkdir -p runs "$cache" # what Docker makes itself belongs to root

set -- a100-2x8-8b-full "$@"
# what config.yaml names by a full path stands at the same place in the container
if grep -Eq "^(model|tokenizer|data|eval_data): ['\"]/" config.yaml; then
    echo "container.sh: a path in config.yaml is quoted: add --volume PATH:PATH:ro below for it" >&2
fi
while IFS= read -r path; do
    [ -z "$path" ] || set -- --mount "type=bind,source=$path,target=$path,readonly" "$@"
done <<PATHS
$(sed -nE 's#^(model|tokenizer|data|eval_data): (/.*)#\2#p' config.yaml | sort -u)
PATHS
# --stop-timeout: seconds for the last save after `docker stop`
exec docker run --rm --init \
    --gpus all \
    --network host --env MASTER_ADDR="${MASTER_ADDR:?the node at which all meet}" \
    --shm-size 8g --stop-timeout 600 \
    --user "$(id -u):$(id -g)" \
    --env HF_TOKEN --volume "$cache:/home/trainer/.cache/huggingface" \
    --volume "$PWD/runs:/project/runs" \
    "$@"
