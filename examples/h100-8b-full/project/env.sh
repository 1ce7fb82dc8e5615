#!/bin/sh
# Read with `. ./env.sh`: the lines NAME=value of .env, exported as they are. Nothing in a value is expanded or run.
# One pair of quotes around a value goes. What is set already stays.
if [ -f .env ]; then
    env_return=$(printf '\r')
    while IFS= read -r env_line || [ -n "$env_line" ]; do
        env_line=${env_line%"$env_return"} # of an editor that ends lines as Windows does
        env_line=${env_line#export }
        case $env_line in
        [A-Za-z_]*=*) ;;
        *) continue ;;
        esac
        env_value=${env_line#*=}
        case $env_value in
        \"*\" | \'*\') env_value=${env_value#?} env_value=${env_value%?} ;;
        esac
        printenv "${env_line%%=*}" >/dev/null || export "${env_line%%=*}=$env_value"
    done <.env
fi
