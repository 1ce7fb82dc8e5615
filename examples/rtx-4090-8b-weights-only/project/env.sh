#!/bin/sh
# Read with `. ./env.sh`: the lines NAME=value of .env, exported as they are. Nothing in a value is expanded or run.
# One pair of quotes around a value goes. What is set already stays. A line that sets nothing is named by its number: it may be a token.
if [ -f .env ]; then
    env_return=$(printf '\r') env_mark=$(printf '\357\273\277') env_number=0
    while IFS= read -r env_line || [ -n "$env_line" ]; do
        env_number=$((env_number + 1))
        env_line=${env_line#"$env_mark"} env_line=${env_line%"$env_return"} # of an editor for Windows
        env_line=${env_line#"${env_line%%[![:blank:]]*}"}
        env_line=${env_line#export }
        env_value=${env_line#*=}
        case $env_value in
        \"*\" | \'*\') env_value=${env_value#?} env_value=${env_value%?} ;;
        esac
        case $env_line in
        "" | "#"*) continue ;;
        [A-Za-z_]*=*) env_name=${env_line%%=*} ;;
        *) env_name=- ;;
        esac
        case $env_name in
        *[!A-Za-z0-9_]*) env_fits= ;;
        # in a shell of its own: a shell may end at a name that it keeps for itself (UID)
        *) env_fits=$( (export "$env_name=$env_value") 2>/dev/null && echo yes) || : ;;
        esac
        if [ -z "$env_fits" ]; then
            echo "env.sh: line $env_number of .env is left out: it cannot set a variable" >&2
            continue
        fi
        printenv "$env_name" >/dev/null || export "$env_name=$env_value"
    done <.env
fi
