#!/bin/sh
# sh container.sh: what the Dockerfile starts, with your tokens, your hub cache and this folder. Other words are another command:
# sh container.sh python infer.py --prompt "..."
set -eu
CDPATH='' cd "$(dirname "$0")"
# shellcheck source=/dev/null
. ./env.sh
cache=${HF_HOME:-$HOME/.cache/huggingface}
# Docker takes whole paths only; the hub library reads ~ too
case $cache in
\~/*) cache=$HOME/${cache#\~/} ;;
/*) ;;
*) cache=$PWD/$cache ;;
esac
mkdir -p "$cache" # what Docker makes itself belongs to root

# one field of --mount, which is CSV
field() {
    printf '"%s"' "$(printf %s "$1" | sed 's/"/""/g')"
}

set -- arc-b580-1-5b-lora "$@"
# What config.yaml names lies in this folder, which is /project in the container, or is mounted where config.yaml finds it
# from there: /x at /x, and ../x of /project is /x too.
names='^(model|adapter|tokenizer|draft_model|data|eval_data):'
# of a pattern in this folder each file, of a folder in it each link: they may lead out of it
expand() {
    while IFS= read -r path; do
        case $path in
        ./*\**) find "$(dirname "$path")" -maxdepth 1 -name "$(basename "$path")" ;;
        *)
            printf '%s\n' "$path"
            case $path in ./*) [ ! -d "$path" ] || find "$path" -mindepth 1 -maxdepth 1 -type l ;; esac
            ;;
        esac
    done
}
if grep -Eq "$names \"" config.yaml; then
    echo "container.sh: config.yaml has a path in double quotes: write it plain, or in single quotes" >&2
    exit 2
fi
while IFS= read -r path; do
    case $path in
    /*) target=$path ;;
    ../*) target=/$(printf %s "$path" | sed -E 's#^(\.\./)+##') ;;
    ./*) target=/project/${path#./} ;;
    *) continue ;; # on the hub
    esac
    case $path in *\**) path=$(dirname "$path") target=$(dirname "$target") ;; esac
    [ -e "$path" ] || {
        echo "container.sh: config.yaml names $path, which is not here" >&2
        exit 2
    }
    source=$(realpath "$path")
    case $path in
    ./*)
        # in this folder, unless a link leads out of it
        case $source/ in "$(pwd -P)"/*) continue ;; esac
        # where perfgen's links lead, the files stand in the container too
        case $(readlink "$path") in /*) target=$(readlink "$path") ;; esac
        ;;
    esac
    # a snapshot of the hub's cache holds links to the files beside it
    case $source in */models--*/snapshots/*) source=${source%/snapshots/*} target=${target%/snapshots/*} ;; esac
    case $target in
    / | /bin | /boot | /dev | /etc | /home | /home/trainer | /lib | /lib64 | /opt | /proc | /project | /root | /run | /sbin | /sys | /tmp | /usr | /var)
        echo "container.sh: $path would stand at $target, over the system of the container: name another folder in config.yaml" >&2
        exit 2
        ;;
    esac
    set -- --mount "type=bind,$(field "source=$source"),$(field "target=$target"),readonly" "$@"
done <<PATHS
$(sed -nE -e "/$names [.\/]/{s#^[a-z_]+: ##;s/[[:space:]]+(\#.*)?\$//;p;}" \
    -e "/$names '/{s#^[a-z_]+: '(.*)'[[:space:]]*(\#.*)?\$#\1#;s#''#'#g;p;}" config.yaml | sort -u | expand)
PATHS
# --stop-timeout: seconds for the last save after `docker stop`
exec docker run --rm --init \
    --device /dev/dri \
    --group-add "$(stat -c %g /dev/dri/renderD128)" \
    --shm-size 1g --stop-timeout 600 \
    --user "$(id -u):$(id -g)" \
    --env HF_TOKEN --env HF_ENDPOINT --env HF_HUB_OFFLINE \
    --env WANDB_API_KEY --env WANDB_BASE_URL --env WANDB_ENTITY --env WANDB_MODE --env WANDB_PROJECT \
    --env MLFLOW_EXPERIMENT_NAME --env MLFLOW_TRACKING_PASSWORD --env MLFLOW_TRACKING_TOKEN --env MLFLOW_TRACKING_URI \
    --env MLFLOW_TRACKING_USERNAME \
    --mount "type=bind,$(field "source=$cache"),target=/home/trainer/.cache/huggingface" \
    --mount "type=bind,$(field "source=$PWD"),target=/project" \
    "$@"
