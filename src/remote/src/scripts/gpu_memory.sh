# Lists the processes that hold memory of GPUs: number and MiB.
export LC_ALL=C
command -v nvidia-smi >/dev/null || { echo none; echo end; exit; }
if said=$(timeout -k 2 15 nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>&1); then
    printf '%s\n' "$said" | while IFS=', ' read -r pid mib _; do
        case $pid in '' | *[!0-9]*) ;; *) echo "held $pid $mib" ;; esac
    done
else
    echo "failed $? $(printf '%s' "$said" | tr '\n\t' '  ' | cut -c 1-200)"
fi
echo end
