# Says what a launch needs to know of a node. One fact to a line; a last line says that all were told.
LC_ALL=C
one_line() { tr '\n\t' '  ' | cut -c 1-300; }
if [ -x @TRAINER ]; then
    echo "sha256 $(sha256sum <@TRAINER | cut -d ' ' -f 1)"
    if said=$(@TRAINER version --json 2>&1 </dev/null); then
        echo "version $(printf '%s' "$said" | tail -n 1)"
    else
        echo "broken $(printf '%s' "$said" | tail -n 1 | one_line)"
    fi
else
    echo "missing"
fi
[ "$(cat @MARKER 2>/dev/null)" = @TOKEN ] && echo "visible yes" || echo "visible no"
@EXISTING
[ -w "$dir" ] && echo "writable yes" || echo "writable no"
set -- $(df -Pk "$dir" | tail -n 1)
echo "free_kib $4"
set -- $(df -Pi "$dir" 2>/dev/null | tail -n 1)
echo "inodes ${4:--}"
[ -r @DATA ] && echo "data yes" || echo "data no"
[ -z @WEIGHTS ] || { [ -r @WEIGHTS/manifest.toml ] && echo "weights yes" || echo "weights no"; }
if [ -n @ADDRESS ]; then
    said=$(timeout 5 bash -c ': </dev/tcp/'@ADDRESS/@PORT 2>&1)
    case $?:$said in
        0:*) echo "port taken" ;;
        *refused*) echo "port free" ;;
        124:*) echo "port silent" ;;
        *) echo "port unknown $(printf '%s' "$said" | tail -n 1 | one_line)" ;;
    esac
fi
if command -v nvidia-smi >/dev/null; then
    if said=$(timeout 20 nvidia-smi -L 2>&1); then
        echo "gpus $(printf '%s\n' "$said" | grep -c '^GPU ')"
        timeout 20 nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv,noheader,nounits 2>/dev/null |
            while IFS=', ' read -r pid memory name; do
                case $pid in '' | *[!0-9]*) continue ;; esac
                user=$(ps -o user= -p "$pid" 2>/dev/null | tr -d ' ')
                printf 'app %s %s %s %s\n' "$pid" "${user:-?}" "$memory" "$name"
            done
    else
        echo "smi $? $(printf '%s' "$said" | one_line)"
    fi
else
    echo "gpus none"
fi
echo end
