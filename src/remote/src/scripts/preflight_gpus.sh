if command -v nvidia-smi >/dev/null; then
    if said=$(timeout 20 nvidia-smi -L 2>&1); then
        echo "gpus $(printf '%s\n' "$said" | grep -c '^GPU ')"
        timeout 20 nvidia-smi --query-compute-apps=pid,used_memory,process_name --format=csv,noheader,nounits 2>/dev/null |
            while IFS=', ' read -r pid memory name; do
                case $pid in '' | *[!0-9]*) continue ;; esac
                user=$(ps -o user= -p "$pid" 2>/dev/null | tr -d ' ')
                printf 'app %s %s %s %s\n' "$pid" "${user:-?}" "$memory" "$name"
            done
        timeout 20 nvidia-smi --query-gpu=index,memory.used,memory.total,ecc.errors.uncorrected.volatile.total \
            --format=csv,noheader,nounits 2>/dev/null | sed 's/^/gpu /'
        # Whoever may not read the kernel's log is told so by its status.
        if said=$(dmesg 2>/dev/null); then
            printf '%s\n' "$said" | grep 'NVRM: Xid' | tail -n 50 | sed 's/^/xid /'
        else
            echo "log unread"
        fi
    else
        echo "smi $? $(printf '%s' "$said" | one_line)"
    fi
else
    echo "gpus none"
fi
