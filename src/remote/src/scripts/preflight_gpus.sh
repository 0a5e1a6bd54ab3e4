# Prints an answer of nvidia-smi, and how it ended. One that hangs is ended.
ask_gpus() { # NAME ARGUMENT...
    name=$1
    shift
    said=$(timeout -k 2 20 nvidia-smi "$@" 2>&1)
    status=$?
    printf '%s\n' "$said" | sed "s/^/$name /"
    echo "${name}_status $status"
}
[ -z "$CUDA_VISIBLE_DEVICES" ] || echo "in_sight $CUDA_VISIBLE_DEVICES"
ask_gpus gpu "$query" "$format"
# What is not there, or hangs, need not be asked again.
case $status in
    124 | 127 | 137) ;;
    *)
        # By the number that is NVIDIA's.
        grep -qsi '^0x10de' /sys/bus/pci/devices/*/vendor && echo "plugged_in yes"
        ask_gpus app "$apps" "$format"
        pids=$(printf '%s\n' "$said" | awk -F ', ' '$2 ~ /^[0-9]+$/ { print $2 }' | sort -u | tr '\n' ' ')
        [ -z "$pids" ] || ps -o pid= -o user:32= -p "${pids% }" | sed 's/^ */owner /'
        xids | sed 's/^/xid /'
        ;;
esac
